"""The JSON schema of a specification file, generated from the models, for editors that complete and check as one types."""

from __future__ import annotations

import json

from perfmodel.hardware.spec import GpuSpec


def schema_text() -> str:
    """`gpu_specs/.schema.json` as it should be. A test keeps the file in step."""
    schema = GpuSpec.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "GPU specification of perfmodel"
    return json.dumps(schema, indent=1) + "\n"
