//! docs/reference/api.md, of the api's own description: what `GET /v1/openapi.json` says, but for the bounds that one
//! gate's settings put in.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Table, code, codes, fill};
use crate::api;

/// Where the description keeps its schemas.
const SCHEMAS: &str = "#/components/schemas/";
/// What a refusal's body is: docs/reference/codes.md and the specification say it.
const PROBLEM: &str = "Problem";

pub(super) fn page() -> String {
    let description = serde_json::to_value(api::describe()).expect("the description is JSON");
    let page = Page { description };
    let mut shown = BTreeSet::from([PROBLEM.to_owned()]);
    fill(include_str!("templates/api.md"), |place, tags| match place {
        "calls" => page.calls(tags),
        "schemas" => page.schemas(tags, &mut shown),
        "values" => page.values(),
        _ => panic!("{place} is no place of this page"),
    })
}

struct Page {
    description: Value,
}

/// One call: method, path, and what the description says of it.
type Call<'a> = (&'a str, &'a str, &'a Value);

impl Page {
    /// The calls with one of these tags.
    fn tagged<'a>(&'a self, tags: &'a [&str]) -> impl Iterator<Item = Call<'a>> {
        let paths = self.description["paths"].as_object().into_iter().flatten();
        let calls = paths.flat_map(|(path, calls)| {
            calls.as_object().into_iter().flatten().map(move |(method, call)| (method.as_str(), path.as_str(), call))
        });
        calls.filter(|(_, _, call)| call["tags"].as_array().is_some_and(|of| is_in(of, tags)))
    }

    fn calls(&self, tags: &[&str]) -> String {
        let mut table = Table::new(&["call", "what it does", "takes", "answer", "refusals of its own"]);
        for (method, path, call) in self.tagged(tags) {
            let text = call["description"].as_str().unwrap_or_default();
            let (more, errors) = text.split_once("# Errors").unwrap_or((text, ""));
            let does = format!("{} {more}", call["summary"].as_str().unwrap_or_default());
            let call_text = code(format!("{} {path}", method.to_uppercase()));
            table.row([call_text, does, Self::takes(call), Self::answer(call), errors.to_owned()]);
        }
        table.text
    }

    /// What a call takes besides its path.
    fn takes(call: &Value) -> String {
        let body = &call["requestBody"]["content"]["application/json"]["schema"];
        let mut parts: Vec<String> = body.is_object().then(|| name(body)).into_iter().collect();
        for place in ["query", "header"] {
            let all = call["parameters"].as_array().into_iter().flatten().filter(|each| each["in"] == place);
            let of_it: Vec<_> = all.map(described).collect();
            if !of_it.is_empty() {
                parts.push(format!("{place}: {}", of_it.join(", ")));
            }
        }
        parts.join("; ")
    }

    /// The status and body of a call that is not refused.
    fn answer(call: &Value) -> String {
        let answers = call["responses"].as_object().into_iter().flatten();
        let good = answers.filter(|(status, _)| status.starts_with('2')).map(|(status, answer)| {
            let bodies = answer["content"].as_object().into_iter().flatten();
            let bodies: Vec<_> = bodies
                .map(|(kind, body)| match kind.as_str() {
                    "application/json" => name(&body["schema"]),
                    kind => format!("{} as `{kind}`", name(&body["schema"])),
                })
                .collect();
            format!("{status}: {}", bodies.join(", "))
        });
        good.collect::<Vec<_>>().join("; ")
    }

    /// The bodies of these calls, each once on the page.
    fn schemas(&self, tags: &[&str], shown: &mut BTreeSet<String>) -> String {
        let mut parts = vec![];
        let mut open: Vec<String> = self.tagged(tags).flat_map(|(_, _, call)| refs(call)).collect();
        open.reverse();
        while let Some(name) = open.pop() {
            let schema = self.schema(&name);
            if is_value(schema) || !shown.insert(name.clone()) {
                continue;
            }
            let (fields, one_of) = (self.fields(schema), schema["oneOf"].as_array());
            let text = schema["description"].as_str().unwrap_or_default();
            parts.push(format!("### {name}\n\n{text}\n"));
            match one_of {
                Some(ways) => {
                    let ways: Vec<_> = ways.iter().map(self::kind).collect();
                    parts.push(format!("One of {}.\n", ways.join(", ")));
                }
                None => parts.push(fields),
            }
            open.extend(refs(schema).into_iter().rev());
        }
        parts.join("\n").replace("\n\n\n", "\n\n")
    }

    /// A table of the fields of an object.
    fn fields(&self, schema: &Value) -> String {
        let mut table = Table::new(&["field", "type", "required", "meaning"]);
        for part in self.parts(schema) {
            let required = part["required"].as_array();
            let is_required = |field: &str| required.is_some_and(|all| is_in(all, &[field]));
            let fields = part["properties"].as_object().into_iter().flatten();
            let (first, then): (Vec<_>, Vec<_>) = fields.partition(|(field, _)| is_required(field));
            for (field, of) in first.into_iter().chain(then) {
                let required = if is_required(field) { "yes" } else { "" };
                table.row([code(field).as_str(), &kind(of), required, &self.meaning(of)]);
            }
        }
        table.text
    }

    /// A schema, or those that it is put together of.
    fn parts<'a>(&'a self, schema: &'a Value) -> Vec<&'a Value> {
        match (schema["allOf"].as_array(), reference(schema)) {
            (Some(parts), _) => parts.iter().flat_map(|part| self.parts(part)).collect(),
            (None, Some(name)) => self.parts(self.schema(name)),
            (None, None) => vec![schema],
        }
    }

    /// What a field is: its own words, or those of its type.
    fn meaning(&self, of: &Value) -> String {
        let ways = of["oneOf"].as_array().into_iter().flatten();
        let own = [of].into_iter().chain(ways).find_map(|each| each["description"].as_str());
        let of_kind = || refs(of).first().map(|name| what(self.schema(name)));
        own.map(str::to_owned).or_else(of_kind).unwrap_or_default()
    }

    /// The kinds of texts and numbers that fields are.
    fn values(&self) -> String {
        let mut table = Table::new(&["type", "JSON", "what it is"]);
        let all = self.description["components"]["schemas"].as_object().into_iter().flatten();
        for (name, schema) in all.filter(|(_, schema)| is_value(schema)) {
            table.row([name, &kind(schema), &what(schema)]);
        }
        table.text
    }

    fn schema(&self, name: &str) -> &Value {
        &self.description["components"]["schemas"][name]
    }
}

/// Whether one of these words is in a list of the description.
fn is_in(list: &[Value], words: &[&str]) -> bool {
    list.iter().any(|each| words.iter().any(|word| each == word))
}

/// Whether it is a text, a number or a list, and no body.
fn is_value(schema: &Value) -> bool {
    schema["type"].as_str().is_some_and(|kind| kind != "object")
}

fn reference(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str()?.strip_prefix(SCHEMAS)
}

/// Every schema that is named in a part of the description, in its order.
fn refs(part: &Value) -> Vec<String> {
    match part {
        Value::Object(fields) => match reference(part) {
            Some(name) => vec![name.to_owned()],
            None => fields.values().flat_map(refs).collect(),
        },
        Value::Array(items) => items.iter().flat_map(refs).collect(),
        _ => vec![],
    }
}

/// What a type is, and its words, if it has no others.
fn what(schema: &Value) -> String {
    let words = schema["enum"].as_array().map(|words| codes(words.iter().filter_map(Value::as_str)));
    [schema["description"].as_str().unwrap_or_default(), &words.unwrap_or_default()].join(" ")
}

/// A body, as a link to its table.
fn name(schema: &Value) -> String {
    match reference(schema) {
        Some(name) => format!("[{name}](#{})", name.to_lowercase()),
        None => kind(schema),
    }
}

/// The type of a field.
fn kind(schema: &Value) -> String {
    if let Some(name) = reference(schema) {
        return name.to_owned();
    }
    if let Some(ways) = schema["oneOf"].as_array() {
        let ways = ways.iter().filter(|way| way["type"] != "null");
        return ways.map(kind).collect::<Vec<_>>().join(" or ");
    }
    let kinds = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).filter(|kind| *kind != "null").collect(),
        one => one.as_str().into_iter().collect::<Vec<_>>(),
    };
    match kinds.as_slice() {
        ["array"] => format!("list of {}", kind(&schema["items"])),
        kinds => kinds.join(" or "),
    }
}

/// A parameter, and whether it must be there.
fn described(parameter: &Value) -> String {
    let name = code(parameter["name"].as_str().unwrap_or_default());
    let required = if parameter["required"] == true { ", required" } else { "" };
    let meaning = parameter["description"].as_str().unwrap_or_default().trim_end_matches('.');
    match (meaning, required) {
        ("", "") => name,
        (meaning, required) => format!("{name} ({})", format!("{meaning}{required}").trim_start_matches(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_on_the_page() {
        let (text, calls) = (page(), api::describe().paths.paths);
        for path in calls.keys() {
            assert!(text.contains(&format!(" {path}` |")), "{path}");
        }
    }
}
