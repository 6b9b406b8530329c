"""The JSON schema of profile files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import (
    BaseModel,
)
from pydantic.json_schema import GenerateJsonSchema
from typing_extensions import override

from servicekit.profiles import vocabulary
from servicekit.profiles.model import Profile

if TYPE_CHECKING:
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core.core_schema import NullableSchema, WithDefaultSchema


class _TomlSchema(GenerateJsonSchema):
    """JSON schema of a TOML file: without null, and with defaults of single keys only."""

    @override
    def nullable_schema(self, schema: NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    @override
    def default_schema(self, schema: WithDefaultSchema) -> JsonSchemaValue:
        if isinstance(schema.get("default"), BaseModel | None):
            return self.generate_inner(schema["schema"])
        return super().default_schema(schema)

    @override
    def field_title_should_be_set(self, schema: object) -> bool:
        return False


def json_schema() -> dict[str, Any]:
    """JSON schema of a profile file, for editors: with `extends`, and without `name`."""
    schema = Profile.model_json_schema(schema_generator=_TomlSchema)
    properties, sections = schema["properties"], schema["$defs"]
    del properties["name"]
    properties["extends"] = {
        "type": "string",
        "pattern": f"^(?:{vocabulary.NAME})$",
        "description": "profile whose keys this file changes: tables are merged key by key, and "
        "false takes an option or a variable away",
    }
    text = properties["environment"]["additionalProperties"]
    properties["environment"]["additionalProperties"] = {"anyOf": [text, {"const": False}]}
    required = [key for key in schema.pop("required") if key != "name"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "servicekit profile",
        # What a profile by itself must say, one that extends another need not repeat.
        "if": {"required": ["extends"]},
        "else": {
            "required": required,
            "properties": {
                "context": {"required": sections["Context"].pop("required")},
                "environment": {"additionalProperties": text},
            },
        },
    }
