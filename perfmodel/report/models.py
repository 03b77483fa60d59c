"""Models as JSON, as terminal tables, and as the YAML of a bundled file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from perfmodel.workload.model import DenseMlp, ModelSpec

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from perfmodel.workload.layer import MoeLayer
    from perfmodel.workload.model import Attention

BEFORE_SIZES = ("layers", "kind")
LEGEND = (
    "total, active: parameters, and those that a token is multiplied by: its experts and the output head, not the embedding."
    " experts: top-k / routed + shared. format: of the weights as published. `perfmodel models MODEL` shows one in full."
)


def model_data(model: ModelSpec) -> dict[str, Any]:
    """What `perfmodel models MODEL --json` prints: the sizes in short, then each kind of block with its number of layers."""
    moe = model.moe
    return {
        "schema": "perfmodel.models/1",
        "model": model.id,
        "layers": model.layers,
        "moe_layers": model.moe_layers,
        "hidden": model.hidden,
        "experts": moe.experts if moe else None,
        "topk": moe.topk if moe else None,
        "inter": model.inter,
        "shared_experts": moe.shared if moe else 0,
        "attention": model.attention_kind,
        "params_total": model.params_total,
        "params_active": model.params_active,
        "format": model.format,
        "notes": list(model.notes),
        "source": model.source,
        "vocab": model.vocab,
        "tied_embeddings": model.tied_embeddings,
        "moe": moe.model_dump() if moe else None,
        "attention_blocks": [block.model_dump() for block in model.attention],
        "dense_blocks": [block.model_dump() for block in model.dense],
    }


def model_yaml(model: ModelSpec) -> str:
    """The YAML file that bundles `model`: only what differs from the defaults, one line a block."""
    from io import StringIO

    from ruamel.yaml import YAML
    from ruamel.yaml.comments import CommentedMap

    def one_line(block: dict[str, Any]) -> CommentedMap:
        line = CommentedMap(block)
        line.fa.set_flow_style()
        return line

    data = model.model_dump(mode="json", exclude={"id"}, exclude_defaults=True)
    for key in ("attention", "dense"):
        if key in data:
            data[key] = [one_line(block) for block in data[key]]
    if "moe" in data:
        data["moe"] = one_line(data["moe"])
    out = StringIO()
    yaml = YAML()
    yaml.width = 4096  # a block stays on its line
    yaml.dump(data, out)
    return out.getvalue()


def print_model(model: ModelSpec, console: Console) -> None:
    """One model in words and numbers, with a table of its blocks, what was not understood, and where it comes from."""
    from rich.text import Text

    console.print(Text(model.id, style="bold").append(f": {_sentence(model)}", style="not bold"))
    console.print(_block_table(model))
    for note in model.notes:
        console.print(f"Note: {note}", highlight=False, markup=False)
    console.print(f"Source: {model.source}", highlight=False, markup=False, soft_wrap=True)


def print_models(models: Sequence[ModelSpec], console: Console) -> None:
    """The table of `perfmodel models` without an argument."""
    table = _table(["model"], ["total", "active", "MoE of\nlayers", "hidden", "inter", "experts"])
    table.add_column("format")
    for model in models:
        params = _billions(model.params_total), _billions(model.params_active)
        sizes = f"{model.moe_layers}/{model.layers}", str(model.hidden), str(model.inter or "-")
        table.add_row(model.id, *params, *sizes, _experts(model.moe), model.format or "unknown")
    console.print(table)
    console.print(LEGEND, highlight=False)


def _experts(moe: MoeLayer | None) -> str:
    return "-" if moe is None else f"{moe.topk}/{moe.experts}" + (f"+{moe.shared}" if moe.shared else "")


def _sentence(model: ModelSpec) -> str:
    parts = [
        f"{_billions(model.params_total)} parameters, {_billions(model.params_active)} active",
        f"{model.layers} layers",
        f"width {model.hidden}",
    ]
    if model.vocab is not None:
        parts.append(f"vocabulary {model.vocab}{' (tied)' if model.tied_embeddings else ''}")
    return ", ".join([*parts, f"format {model.format or 'unknown'}"])


def _block_table(model: ModelSpec) -> Table:
    table = _table(["block", "sizes"], ["layers", "parameters a layer"])
    for block in model.attention:
        table.add_row(block.kind, _sizes(block), str(block.layers), _billions(block.weights(model.hidden)))
    for mlp in model.dense:
        table.add_row("mlp", _sizes(mlp), str(mlp.layers), _billions((3 if mlp.gated else 2) * model.hidden * mlp.inter))
    if model.moe is not None:
        from perfmodel.workload.parameters import moe_weights

        table.add_row("moe", _sizes(model.moe), str(model.moe_layers), _billions(moe_weights(model.moe, model.moe.experts)))
    return table


def _sizes(block: Attention | DenseMlp | MoeLayer) -> str:
    """The fields of a block that are not at their defaults, as `name value`."""
    fields = block.model_dump(exclude_defaults=True, exclude=set(BEFORE_SIZES) | {"hidden"})
    flat = {k: v for k, v in fields.items() if not isinstance(v, dict)} | {
        f"{k} {inner}": v for k, table in fields.items() if isinstance(table, dict) for inner, v in table.items()
    }
    return ", ".join(f"{name.replace('_', ' ')} {str(value).lower()}" for name, value in flat.items())


def _billions(number: int) -> str:
    """A count with three digits and its unit: 671B, 4.55B, 45.3M, 1.57T."""
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= unit * 0.9995:
            digits = max(0, 2 - len(str(int(number / unit))) + 1)
            return f"{number / unit:.{digits}f}{name}"
    return str(number)


def _table(left: Sequence[str], right: Sequence[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in left:
        table.add_column(name)
    for name in right:
        table.add_column(name, justify="right")
    return table
