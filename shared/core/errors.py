"""The one base error. An expected "no" is a returned outcome; an exception means a broken dependency, bad input at a door, or a bug."""


class LegatoError(Exception):
    """Anything that Legato raises on purpose. The message says what was wrong and what would be right."""


def leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The errors themselves, however deep task groups have wrapped them."""
    return [leaf for each in group.exceptions for leaf in (leaves(each) if isinstance(each, BaseExceptionGroup) else [each])]
