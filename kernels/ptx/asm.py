"""One maker: a piece of PTX and a typed signature become a function that numba.cuda kernels call.

    @asm("ld.shared.v4.b32 {$out}, [$address];")
    def load_shared_x4(address: U32) -> U32x4:
        \"\"\"Four 32-bit words from shared memory.\"\"\"

declares one, and inside a kernel `a, b, c, d = load_shared_x4(address)` emits the instruction. The body of the declaration is
only its docstring; types stand in the annotations. In the text

- `$name` is the operand of that parameter, `$out` the result. A tuple is written out as its elements, `"$4, $5, $6, $7"`,
  so `{$name}` is a PTX vector; `$name[2]` is one element and `$name[4:8]` four of them.
- a parameter of type `Immediate` must be a constant at compile time and stands in the text as a number.
- `${:uid}` is a number unique to each place where the instruction is emitted: for labels.

Where types depend on a number (the accumulators of a tile, say), build the text and call `instruction`, which `asm` calls too.

How it works: numba's `@intrinsic` lets a function emit LLVM IR; this one emits an `llvmlite.ir.InlineAsm` call whose constraint
string follows from the types (`r` 32-bit, `l` 64-bit, `h` 16-bit, `f` and `d` floating point; `=` for results). Tuples travel
through LLVM as arrays: their elements are taken apart before the call and put together after it, at constant indices, so
that they stay in registers.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_type_hints

from llvmlite import ir
from numba import types
from numba.core.errors import TypingError
from numba.cuda.extending import intrinsic

IMMEDIATE = "immediate"

U16 = Annotated[Any, types.uint16]
U32 = Annotated[Any, types.uint32]
I32 = Annotated[Any, types.int32]
U64 = Annotated[Any, types.uint64]
F32 = Annotated[Any, types.float32]
U32x2 = Annotated[Any, types.UniTuple(types.uint32, 2)]
U32x4 = Annotated[Any, types.UniTuple(types.uint32, 4)]
U32x8 = Annotated[Any, types.UniTuple(types.uint32, 8)]
F32x4 = Annotated[Any, types.UniTuple(types.float32, 4)]
Immediate = Annotated[Any, IMMEDIATE]
"""What the annotations of a declaration may be, each with the numba type that is meant. To Python they are `Any`: code of a kernel is
typed by numba, whose integers mypy does not know. They serve as annotations of device functions too."""

Effect = Literal["memory", "ordered", "none"]
"""What an instruction does besides its result. `memory`: it reads or writes memory that the compiler knows, or synchronises, so
loads and stores do not move across it. `ordered`: it stays in order with other such instructions and is never dropped, but
touches no memory that the kernel writes (loads of constant data). `none`: it only computes, and may be moved, merged, dropped."""

CONSTRAINTS: dict[Any, tuple[str, ir.Type]] = {
    types.uint16: ("h", ir.IntType(16)),
    types.int32: ("r", ir.IntType(32)),
    types.uint32: ("r", ir.IntType(32)),
    types.int64: ("l", ir.IntType(64)),
    types.uint64: ("l", ir.IntType(64)),
    types.float32: ("f", ir.FloatType()),
    types.float64: ("d", ir.DoubleType()),
}
"""numba type -> constraint letter and LLVM type of one register."""

Declaration = TypeVar("Declaration", bound=Callable[..., Any])


@dataclass(frozen=True)
class Instruction:
    """What an intrinsic is made from; it hangs on the intrinsic as `.ptx`.

    `parameters` maps names to numba types (or IMMEDIATE). `updates` names the parameter whose registers the result takes
    over (`mma`'s accumulators): it must have the type of the result. `needs` is the least architecture, `sm_80`, or the only
    one where it ends in `a`. `early` keeps results out of the registers of operands: needed where a text of several
    instructions writes a result before it has read all operands.
    """

    name: str
    text: str
    parameters: Mapping[str, Any]
    result: Any = types.void
    effect: Effect = "memory"
    updates: str | None = None
    needs: str = "sm_80"
    early: bool = False


def asm(
    text: str, *, effect: Effect = "memory", updates: str | None = None, needs: str = "sm_80", early: bool = False
) -> Callable[[Declaration], Declaration]:
    """Decorator that makes an intrinsic of a declaration; see the head of this module, and `Instruction` for the keywords."""

    def decorate(declaration: Declaration) -> Declaration:
        hints = {name: _numba_type(hint) for name, hint in get_type_hints(declaration, include_extras=True).items()}
        result = hints.pop("return")
        made = Instruction(declaration.__name__, text, hints, result, effect, updates, needs, early)
        return cast(Declaration, instruction(made, declaration.__doc__ or "", declaration.__module__))

    return decorate


def instruction(made: Instruction, doc: str = "", module: str = __name__) -> Callable[..., Any]:
    """The intrinsic of `made`: callable inside kernels, with these parameters, by position.

    Raises ValueError where the text names an operand that is not there, or `updates` does not have the type of the result. In
    a kernel, wrong arguments raise numba's TypingError.
    """
    if "out" in made.parameters:
        raise ValueError(f"{made.name}: `out` is the result, no parameter can have that name")
    if made.updates is not None and made.parameters[made.updates] != made.result:
        raise ValueError(f"{made.name}: {made.updates} is updated in place, so it must have the type of the result, {made.result}")
    _fill_in(made, dict.fromkeys(_immediates(made), 0))  # a misspelt operand fails here, not in a kernel

    def define(_context: Any, *given: Any) -> Any:
        if len(given) != len(made.parameters):
            raise TypingError(f"{made.name} takes {len(made.parameters)} arguments ({', '.join(made.parameters)}), got {len(given)}")
        accepted = [_accept(made, name, want, got) for (name, want), got in zip(made.parameters.items(), given, strict=True)]
        constants = {name: got.literal_value for name, got in zip(made.parameters, accepted, strict=True) if name in _immediates(made)}
        return made.result(*accepted), _emitter(made, constants)

    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("context", *made.parameters)]
    define.__name__ = define.__qualname__ = made.name
    define.__doc__, define.__module__ = doc, module
    define.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # numba counts the arguments by it
    made_intrinsic = intrinsic(define)
    made_intrinsic.ptx = made
    return made_intrinsic  # type: ignore[no-any-return]


def _numba_type(hint: Any) -> Any:
    return types.void if hint is type(None) else get_args(hint)[-1]


def _immediates(made: Instruction) -> list[str]:
    return [name for name, wanted in made.parameters.items() if wanted is IMMEDIATE]


def _elements(kind: Any) -> list[Any]:
    """The registers that a value of this numba type takes."""
    if kind == types.void or kind is IMMEDIATE:
        return []
    return list(kind) if isinstance(kind, types.BaseTuple) else [kind]


def _accept(made: Instruction, name: str, wanted: Any, given: Any) -> Any:
    """The type that argument `name` is converted to; raises numba's TypingError where it cannot be meant."""
    if wanted is IMMEDIATE:
        if isinstance(given, types.IntegerLiteral):
            return given
        raise TypingError(f"{made.name}: {name} must be a constant integer, known when the kernel is compiled, got {given}")
    expected, found = _elements(wanted), _elements(given)
    fits = isinstance(given, types.BaseTuple) == isinstance(wanted, types.BaseTuple) and len(expected) == len(found)
    if fits and all(_converts(have, want) for have, want in zip(found, expected, strict=True)):
        return wanted
    raise TypingError(f"{made.name}: {name} must be {wanted}, got {given}")


def _converts(given: Any, wanted: Any) -> bool:
    """Integers convert to integers of any width, numbers to floating point; a float is never cut to an integer."""
    return isinstance(given, types.Integer | types.Boolean | (types.Float if isinstance(wanted, types.Float) else types.Integer))


def _fill_in(made: Instruction, constants: Mapping[str, int]) -> str:
    """The text with `$name` replaced by operand numbers: results first, then parameters, as LLVM counts them."""
    numbers: dict[str, list[str]] = {}
    count = 0
    for name, kind in {"out": made.result, **made.parameters}.items():
        size = len(_elements(kind))
        numbers[name] = [str(constants[name])] if name in constants else [f"${count + i}" for i in range(size)]
        count += size

    def replace(match: re.Match[str]) -> str:
        name, first, stop = match.groups()
        if not numbers.get(name) or (first and int(stop or int(first) + 1) > len(numbers[name])):
            raise ValueError(
                f"{made.name}: no operand {match.group()}; there are {', '.join(f'{n}[{len(v)}]' for n, v in numbers.items())}"
            )
        return ", ".join(numbers[name][int(first) : int(stop or int(first) + 1)] if first else numbers[name])

    return re.sub(r"\$([a-z_]\w*)(?:\[(\d+)(?::(\d+))?\])?", replace, made.text)


def _constraints(made: Instruction) -> str:
    """LLVM's constraint string. The registers of `updates` are tied to those of the result by their numbers."""
    output = "=&" if made.early else "="
    letters = [output + CONSTRAINTS[kind][0] for kind in _elements(made.result)]
    for name, kind in made.parameters.items():
        elements = _elements(kind)
        letters += [str(i) for i in range(len(elements))] if name == made.updates else [CONSTRAINTS[e][0] for e in elements]
    return ",".join([*letters, *(["~{memory}"] if made.effect == "memory" else [])])


def _emitter(made: Instruction, constants: Mapping[str, int]) -> Callable[..., Any]:
    """The code generator that numba calls with the LLVM values of the arguments."""
    results = _elements(made.result)
    registers = [CONSTRAINTS[kind][1] for kind in results]
    returned = ir.VoidType() if not results else registers[0] if len(results) == 1 else ir.LiteralStructType(registers)
    attributes = _attributes(made)

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        operands: list[Any] = []
        for value, (name, kind) in zip(arguments, made.parameters.items(), strict=True):
            if isinstance(kind, types.BaseTuple):
                operands += [builder.extract_value(value, i) for i in range(len(kind))]
            elif name not in constants:
                operands.append(value)
        function_type = ir.FunctionType(returned, [operand.type for operand in operands])
        code = ir.InlineAsm(function_type, _fill_in(made, constants), _constraints(made), side_effect=made.effect != "none")
        value = builder.call(code, operands, attrs=attributes)
        return _returned(context, builder, made.result, value)

    return emit


def _attributes(made: Instruction) -> tuple[str, ...]:
    """`convergent` keeps LLVM from moving what a whole warp executes together into a branch; `readnone` lets pure code move."""
    together = (".sync" in made.text or ".aligned" in made.text, "convergent")
    pure = (made.effect == "none", "readnone")
    return tuple(name for holds, name in (together, pure) if holds)


def _returned(context: Any, builder: Any, result: Any, value: Any) -> Any:
    """The value as numba represents it: nothing, a scalar, or a tuple."""
    if result == types.void:
        return context.get_dummy_value()
    if not isinstance(result, types.BaseTuple):
        return value
    elements = [builder.extract_value(value, i) for i in range(len(result))] if len(result) > 1 else [value]
    packed = ir.Constant(context.get_value_type(result), ir.Undefined)
    for i, element in enumerate(elements):
        packed = builder.insert_value(packed, element, i)
    return packed
