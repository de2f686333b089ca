"""What a manifest is held against: the schemas of Kubernetes, strictly, and those of the Prometheus operator."""
import json
from typing import Any

import jsonschema
import kubernetes_validate

from tools import HERE, Document

OPERATOR = "monitoring.coreos.com/"


def closed(schema: Any) -> Any:
    """The same schema, where nothing may be that it does not name."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {key: closed(part) for key, part in schema.items()}
    if isinstance(schema.get("properties"), dict):
        parts.setdefault("additionalProperties", False)
    if schema.get("nullable") and isinstance(schema.get("type"), str):
        parts["type"] = [schema["type"], "null"]
    return parts


def faults(manifest: Document, kubernetes: str) -> list[str]:
    """What is wrong with a manifest. An unknown kind is wrong, too."""
    if manifest["apiVersion"].startswith(OPERATOR):
        schema = closed(json.loads((HERE / "schemas" / f"{manifest['kind']}.json").read_text()))
        found = jsonschema.Draft202012Validator(schema).iter_errors(manifest)
        return [f"{error.json_path}: {error.message}" for error in found]
    try:
        kubernetes_validate.validate(manifest, kubernetes, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{error.json_path}: {error.message}"]
    except (kubernetes_validate.SchemaNotFoundError, kubernetes_validate.InvalidSchemaError) as error:
        return [error.message]
    return []
