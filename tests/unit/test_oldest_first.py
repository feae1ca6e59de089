"""Tables that give up their oldest entry keep their order in snapshots, and find the oldest at once however many have gone."""

from collections import OrderedDict
from collections.abc import Callable

import msgspec
import pytest

from services.admission.accounts import Accounts
from services.admission.state import State as AdmissionState
from services.kv_registry.paths import Paths
from services.scheduler.book import State as SchedulerState
from services.scheduler.ordering import Ledger
from shared.contracts.ids import CellId

TABLES: list[tuple[Callable[[], msgspec.Struct], str, bytes]] = [
    (Paths, "stretches", b"[null,[1]]"),
    (lambda: SchedulerState(cell=CellId("c")), "heard", b"1"),
    (Ledger, "programs", b"{}"),
    (AdmissionState, "settled", b"1"),
    (AdmissionState, "refused", b"1"),
    (Accounts, "paid", b'{"account":"a","left":0}'),
]


@pytest.mark.parametrize(("made", "name", "value"), TABLES, ids=[name for _, name, _ in TABLES])
def test_a_snapshot_keeps_the_order(made: Callable[[], msgspec.Struct], name: str, value: bytes) -> None:
    state = made()
    raw = msgspec.json.decode(msgspec.json.encode(state), type=dict[str, msgspec.Raw])
    raw[name] = msgspec.Raw(b'{"3":%b,"1":%b,"2":%b}' % (value, value, value))
    state = msgspec.json.decode(msgspec.json.encode(raw), type=type(state))
    table = getattr(state, name)
    assert isinstance(table, OrderedDict)
    first, *_ = table
    table[first] = table.pop(first)
    again = msgspec.json.decode(msgspec.json.encode(state), type=type(state))
    assert [str(key) for key in getattr(again, name)] == [str(key) for key in table] == ["1", "2", "3"]
    assert again == state
