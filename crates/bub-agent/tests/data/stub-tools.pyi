from typing import Any, Literal, NotRequired, TypedDict


WeatherReport = TypedDict('WeatherReport', {'city': str, 'temp': NotRequired[float], 'in': NotRequired[str]})


class ResObj2Result(TypedDict):
    city: str
    node: Node
    nodes: NotRequired[list[Node]]


class Node(TypedDict):
    value: int
    next: NotRequired[Node | None]


class Node2(TypedDict):
    other: str | None
    any: Any


class P(TypedDict):
    q: str


class NestedCfg(TypedDict):
    deep: NestedCfgDeep


class NestedCfgDeep(TypedDict):
    x: NotRequired[bool]


class NestedResult(TypedDict):
    items: list[NestedResultItemsItem]


class NestedResultItemsItem(TypedDict):
    id: int


class MyParam(TypedDict):
    """The param."""
    # An x. Second line.
    x: str
    y: NotRequired[int]


class _2Things(TypedDict):
    """A thing.
    With lines.
    """
    # An x.
    x: str


class MyParam2(TypedDict):
    # An x. Second line.
    x: str
    y: NotRequired[int]


class MixedReqResult(TypedDict):
    a: NotRequired[str]


class R(TypedDict):
    v: str


class Caf(TypedDict):
    v: str
    _w: NotRequired[str]


class List(TypedDict):
    v: NotRequired[str]


class EnumretResultItem(TypedDict):
    q: NotRequired[str]


async def plain_tool() -> Any:
    ...


async def with_args(*, a: str, b: int = 3, c: float | None = None, d: bool = ..., e: str | None = ...) -> str:
    """Does a thing.

    More text.

    Args:
        a: The a.
        d: Two lines
    """


async def _class(**kwargs: Any) -> list[int]:
    """Keyword."""


async def _1st(*, kinds: list[str] = ['m', 't'], m: dict[str, int] = ..., o: dict[str, Any] = ..., lit: Literal['a', 1, None] = ..., k: Literal['x'] = ...) -> tuple[str, int]:
    """x"""


async def res_obj() -> WeatherReport:
    """Report"""


async def res_obj2() -> ResObj2Result:
    """Rec"""


async def res_obj3() -> Node2:
    """\"\"\"quotes\"\"\" and \\ back"""


async def ref_args(*, n: P) -> Any:
    """Ref"""


async def one(*, v: int | list[Any] = ..., w: int | str = 'z') -> dict[str, Any]:
    """One"""


async def nested(*, cfg: NestedCfg) -> NestedResult:
    """Nested"""


async def desc_fields(*, p: MyParam = ...) -> _2Things:
    """First line.
        indented

    last

    Args:
        p: The param.
    """


async def same_class(*, p: MyParam2 = ...) -> dict[str, Any]:
    """d"""


async def defaults(*, f: float = 1.5, t: bool = True, n: Any = None, o: dict[str, Any] = {'a': [1, None, False]}, s: str = 'it\'s "q"\n', z: str = None) -> None:
    """Only
    Args
    """


async def unions(*, a: str | int = ..., b: str = ..., c: Any = ..., d: str = ..., e: Any = ..., g: Literal['a"b', True, 1.5] = ..., h: list[Any] = ..., i: tuple[()] = ..., j: Any = ..., k: Any = ...) -> list[str | None]:
    ...


async def mixed_req(*, opt: int = 1, req: str, opt2: int = ...) -> MixedReqResult:
    """m"""


async def a_b() -> R:
    """x"""


async def café_tool_x(*, é: str = ...) -> Caf:
    """\\d "end\""""


async def _None(*, self: str) -> List:
    """trailing\\"""


async def enumret() -> Literal[1] | Literal['x'] | list[EnumretResultItem]:
    """x"""
