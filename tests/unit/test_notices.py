"""What the clouds say of a planned loss, and what is made of it."""

from datetime import UTC, datetime

import pytest

from services.worker.config import WorkerConfig
from services.worker.notices import aws, azure, file, gcp
from services.worker.notices.notice import Notice, Unreadable, utc_ns
from shared.runtime.config import ConfigError, load

NOW_NS = 1_700_000_000_000_000_000
MOMENT_NS = int(datetime(2017, 9, 18, 8, 22, tzinfo=UTC).timestamp()) * 1_000_000_000


def events(*listed: str) -> bytes:
    return f'{{"DocumentIncarnation": 2, "Events": [{", ".join(listed)}]}}'.encode()


def event(
    kind: str = "Preempt", resources: str = '["vm_0"]', status: str = "Scheduled", before: str = "Mon, 18 Sep 2017 08:22:00 GMT"
) -> str:
    return f'{{"EventId": "A", "EventType": "{kind}", "Resources": {resources}, "EventStatus": "{status}", "NotBefore": "{before}"}}'


def test_a_spot_interruption_says_when() -> None:
    for action in ("terminate", "stop"):
        said = f'{{"action": "{action}", "time": "2017-09-18T08:22:00Z"}}'.encode()
        assert aws.interruption(said, NOW_NS) == Notice(f"EC2 spot {action}", MOMENT_NS)


def test_a_hibernation_has_begun_already() -> None:
    assert aws.interruption(b'{"action": "hibernate", "time": "2017-09-18T08:22:00Z"}', NOW_NS).gone_ns == NOW_NS


def test_a_rebalance_recommendation_leaves_the_two_minutes_of_the_interruption_that_may_follow() -> None:
    assert aws.rebalance(b'{"noticeTime": "2020-10-27T08:22:00Z"}', NOW_NS).gone_ns == NOW_NS + 120 * 10**9


@pytest.mark.parametrize("content", [b"", b"no", b"two words", b"a\nb", "ü".encode(), b"x" * 1025])
def test_what_cannot_stand_in_a_header_is_no_token(content: bytes) -> None:
    if content == b"no":
        assert aws.token(content) == "no"
    else:
        with pytest.raises(Unreadable, match="no token"):
            aws.token(content)


def test_a_preempted_machine_has_thirty_seconds() -> None:
    assert gcp.preempted(b"FALSE\n", NOW_NS) is None
    assert gcp.preempted(b"TRUE\n", NOW_NS) == Notice("GCP preemption", NOW_NS + 30 * 10**9)


def test_a_machine_that_is_moved_with_all_it_holds_is_no_loss() -> None:
    assert gcp.maintenance(b"NONE", NOW_NS, 60) is None
    assert gcp.maintenance(b"MIGRATE_ON_HOST_MAINTENANCE", NOW_NS, 60) is None
    assert gcp.maintenance(b"TERMINATE_ON_HOST_MAINTENANCE", NOW_NS, 3600) == Notice("GCP host maintenance", NOW_NS + 3600 * 10**9)


@pytest.mark.parametrize("kind", ["Preempt", "Terminate", "Reboot", "Redeploy"])
def test_an_event_that_names_this_machine_is_a_loss(kind: str) -> None:
    assert azure.losses(events(event(kind, '["other", "VM_0"]')), "vm_0", NOW_NS) == Notice(f"Azure {kind}", MOMENT_NS)


def test_events_of_others_pauses_and_kinds_of_later_years_are_no_loss() -> None:
    listed = events(event(resources='["vm_1", "vm_00"]'), event("Freeze"), event("Rebalance"), event(resources="[]"))
    assert azure.losses(listed, "vm_0", NOW_NS) is None
    assert azure.losses(events(), "vm_0", NOW_NS) is None


def test_an_event_that_has_started_is_a_loss_now() -> None:
    assert azure.losses(events(event(status="Started", before="")), "vm_0", NOW_NS) == Notice("Azure Preempt", NOW_NS)
    assert azure.losses(events('{"EventType": "Reboot", "Resources": ["vm_0"]}'), "vm_0", NOW_NS) == Notice("Azure Reboot", NOW_NS)


def test_the_first_loss_counts() -> None:
    later, first = event("Terminate", before="Mon, 18 Sep 2017 08:30:00 GMT"), event("Preempt", before="2017-09-18T08:22:00Z")
    assert azure.losses(events(later, first, later), "vm_0", NOW_NS) == Notice("Azure Preempt", MOMENT_NS)


def test_one_unreadable_event_hides_no_other() -> None:
    assert azure.losses(events(event(before="soon"), event(), "7"), "vm_0", NOW_NS) == Notice("Azure Preempt", MOMENT_NS)
    with pytest.raises(Unreadable, match=r"soon.*it should be like"):
        azure.losses(events(event(before="soon"), event("Freeze")), "vm_0", NOW_NS)


def test_a_file_says_how_long_after_it_was_written_and_why() -> None:
    assert file.announced(b'{"seconds": 5, "why": "the rack\\n is moved"}', NOW_NS, 30) == Notice("the rack is moved", NOW_NS + 5 * 10**9)
    assert file.announced(b" \n", NOW_NS, 30) == Notice("the notice file", NOW_NS + 30 * 10**9)
    assert file.announced(b"{}", NOW_NS, 7) == Notice("the notice file", NOW_NS + 7 * 10**9)


@pytest.mark.parametrize(
    "content", [b"now", b'{"seconds": -1}', b'{"seconds": "5"}', b'{"second": 5}', b'{"seconds": 1e99}', b"[]", b'{"why": 3}']
)
def test_a_file_that_says_something_else_is_told_what_would_be_right(content: bytes) -> None:
    with pytest.raises(Unreadable, match="it should be like"):
        file.announced(content, NOW_NS, 30)


def test_a_time_without_its_zone_is_no_time() -> None:
    assert utc_ns("2017-09-18T10:22:00+02:00") == utc_ns("Tue, 18 Sep 2017 08:22:00 GMT") == MOMENT_NS
    for text in ("2017-09-18T08:22:00", "2017-09-18", "Mon, 31 Feb 2017 08:22:00 GMT", "Mon, 18 Xyz 2017 08:22:00 GMT", ""):
        with pytest.raises(ValueError):
            utc_ns(text)


@pytest.mark.parametrize(
    ("setting", "right"),
    [
        ("notices.azure_url=http://169.254.169.254", "azure_resource"),
        ("notices.aws_url=169.254.169.254", "https?"),
        ("notices.aws_url=http://user:secret@host", "https?"),
        ("notices.poll_ms=1", ">= 50"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_what_would_be_right(setting: str, right: str) -> None:
    with pytest.raises(ConfigError, match=right):
        load(WorkerConfig, "worker", overrides=[setting])
