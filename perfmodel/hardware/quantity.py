"""A number with its provenance, and the range in which it makes sense."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from perfmodel.validated import Strict

Status = Literal["datasheet", "measured", "derived", "estimated", "user"]

USER_SOURCE = "given by the user"
NUMBER_ALONE = "Write the number alone: the unit stands in the field's name."


class Quantity(Strict):
    """A number in the unit that the name of its field ends with. A bare number in a user's own file gets the status `user`."""

    value: float
    source: str = Field(min_length=3)
    """Where the value comes from; both sources where two disagree."""
    status: Status
    """How far to trust it: `estimated` covers guesses, siblings' values and unresolved disagreements."""

    @model_validator(mode="before")
    @classmethod
    def _bare_number_is_the_users(cls, data: Any) -> Any:
        if isinstance(data, Quantity):
            return data
        value = data.get("value", 0) if isinstance(data, dict) else data
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise PydanticCustomError("not_a_number", "must be a number", {"value": value, "mend": NUMBER_ALONE})
        return data if isinstance(data, dict) else {"value": value, "source": USER_SOURCE, "status": "user"}


class Count(Quantity):
    """A whole number of things."""

    value: int


@dataclass(frozen=True)
class Between:
    """Bounds, wide enough for any what-if and narrow enough to catch a unit that is a thousand times off."""

    low: float
    high: float
    unit: str = ""

    def check(self, quantity: Quantity) -> Quantity:
        """`quantity` itself. Raises PydanticCustomError where it is out of bounds."""
        if not self.low <= quantity.value <= self.high:
            mend = f"Give {self.low:,.10g} to {self.high:,.10g} {self.unit}".rstrip() + "."
            raise PydanticCustomError("out_of_range", "out of range", {"value": quantity.value, "mend": mend})
        return quantity

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """A bare number within the bounds, or the object with source and status."""
        sourced = handler(schema)
        kind = handler.resolve_ref_schema(sourced)["properties"]["value"]["type"]
        bounds = {"minimum": self.low, "maximum": self.high}
        return {"anyOf": [{"type": kind, **bounds}, {"allOf": [sourced], "properties": {"value": bounds}}]}


GB = Annotated[Quantity, Between(0.1, 1e5, "GB")]
GBps = Annotated[Quantity, Between(1, 1e6, "GB/s")]
Tflops = Annotated[Quantity, Between(1e-4, 1e6, "TFLOP/s")]
FlopPerClock = Annotated[Quantity, Between(1, 1e6, "FLOP per clock and SM")]
Mhz = Annotated[Quantity, Between(50, 1e4, "MHz")]
Nanoseconds = Annotated[Quantity, Between(1, 1e5, "ns")]
MiB = Annotated[Quantity, Between(0.1, 1e5, "MiB")]
KiB = Annotated[Quantity, Between(1, 1e5, "KiB")]
Watts = Annotated[Quantity, Between(1, 1e5, "W")]
Fraction = Annotated[Quantity, Between(0.01, 1)]
Number = Annotated[Count, Between(1, 1e6)]
