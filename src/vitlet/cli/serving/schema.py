"""The HTTP interface, described for machines (OpenAPI 3.1)."""

from __future__ import annotations

from typing import Any

from vitlet import __version__
from vitlet.cli.serving.limits import Limits

MOST_CLASSES = 1000


def openapi(limits: Limits) -> dict[str, Any]:
    """The description that ``/openapi.json`` serves."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "vitlet serve", "version": __version__},
        "paths": {
            "/api/runs": {"get": _operation("What is served, and the limits.", "Served")},
            "/api/predict": {"post": _predict(limits)},
            "/healthz": {
                "get": {"summary": "Whether the server answers.", "responses": {"200": {"description": "ok"}}}
            },
        },
        "components": {"schemas": _schemas()},
    }


def _operation(summary: str, schema: str) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    responses = {"200": {"description": summary, "content": content}}
    return {"summary": summary, "responses": responses}


def _predict(limits: Limits) -> dict[str, Any]:
    operation = _operation("Classes of an image, by every run that is served.", "Answer")
    refusals = {
        "400": "the request is not understood",
        "403": "it comes from another site, or for another host",
        "411": "it does not say its length",
        "413": f"more than {limits.upload_bytes} bytes or {limits.pixels} pixels",
        "415": "no image that is read here",
        "422": "an image that is damaged",
        "503": "busy: try again",
    }
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    operation["responses"] |= {code: {"description": why, "content": content} for code, why in refusals.items()}
    operation["parameters"] = [
        _parameter("topk", {"type": "integer", "minimum": 1, "maximum": MOST_CLASSES, "default": 5}, "classes to name"),
        _parameter("maps", {"type": "boolean", "default": False}, "also where the network looked"),
    ]
    body = {"description": "the bytes of an image file", "content": {"image/*": {}, "application/octet-stream": {}}}
    return operation | {"requestBody": {"required": True, **body}}


def _parameter(name: str, schema: dict[str, Any], description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "description": description, "schema": schema}


def _record(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties, "additionalProperties": False}


def _list(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": of}


def _schemas() -> dict[str, Any]:
    text, number, whole = {"type": "string"}, {"type": "number"}, {"type": "integer"}
    grid = {"description": "rows of a token grid over the image that the network saw", **_list(_list(number))}
    places = _record(
        ("rows", "columns", "true", "predicted", "error", "chance", "origin"),
        rows=whole,
        columns=whole,
        true=_list(_list(number)),
        predicted=_list(_list(number)),
        error=grid,
        chance=number,
        origin={"type": ["integer", "null"]},
    )
    guess = _record(("class", "probability"), **{"class": text, "probability": {**number, "minimum": 0, "maximum": 1}})
    run_answer = _record(
        ("run", "classes", "milliseconds"),
        run=text,
        classes=_list(guess),
        milliseconds=number,
        seen={"type": ["string", "null"], "description": "PNG as a data address; the maps lie over it"},
        maps=_record((), class_map=grid, attention=grid, places=places),
        left_out={"description": "why a map is missing", **_list(text)},
    )
    served = _record(
        ("run", "model", "classes", "image_size", "temperature", "notes"),
        run=text,
        model=text,
        classes=_list(text),
        image_size=_list(whole),
        temperature=number,
        notes=_list(text),
    )
    limits = _record(("upload_bytes", "pixels", "formats"), upload_bytes=whole, pixels=whole, formats=_list(text))
    image = _record(("width", "height"), width=whole, height=whole)
    return {
        "Answer": _record(("image", "answers"), image=image, answers=_list(run_answer)),
        "Served": _record(("runs", "limits"), runs=_list(served), limits=limits),
        "Error": _record(("error",), error=text),
    }
