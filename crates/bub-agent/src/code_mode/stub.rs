//! The stub: a Python file with the signatures of the tools that code can call, made from their JSON Schemas.

use std::fmt::Write as _;

use bub_kernel::ToolSpec;
use serde_json::{Map, Value};

const HEADER: &str = r#""""The tools that code in `run_code` can call as `tools.<name>(...)`.

All of them are async functions with keyword arguments: `await` each call, also at the top level.
A call returns data of the type below, or raises an exception. Independent calls can run at the
same time with `asyncio.gather`.
"""

from typing import Any, Literal, NotRequired, TypedDict
"#;

/// The keywords of Python, which cannot be names.
const KEYWORDS: [&str; 35] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue",
    "def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import",
    "in", "is", "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while",
    "with", "yield",
];
const ANY: &str = "Any";

/// Returns the stub of these tools.
pub(crate) fn build_stub<'a>(tools: impl Iterator<Item = &'a ToolSpec>) -> String {
    let mut builder = StubBuilder::default();
    let functions: Vec<String> = tools.map(|spec| builder.function(spec)).collect();
    let mut text = HEADER.to_owned();
    let classes = builder.classes.into_iter().map(|class| class.text);
    for part in classes.chain(functions) {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n\n{part}");
    }
    text
}

/// Returns the name of a tool in code: its model name, adapted to the rules of Python.
pub(crate) fn function_name(spec: &ToolSpec) -> String {
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    let name = spec.model_name();
    let name = name
        .chars()
        .map(|character| if is_word(character) { character } else { '_' });
    as_name(name.collect())
}

#[derive(Default)]
struct StubBuilder {
    classes: Vec<StubClass>,
}

/// A class for an object with known keys.
struct StubClass {
    name: String,
    schema: Value,
    /// The definitions that the schema may refer to.
    definitions: Value,
    text: String,
}

impl StubBuilder {
    fn function(&mut self, spec: &ToolSpec) -> String {
        let (name, hint) = (function_name(spec), pascal_case(&spec.model_name()));
        let empty = Map::new();
        let properties = spec.parameters.get("properties").and_then(Value::as_object);
        let properties = properties.unwrap_or(&empty);
        let required = required_names(&spec.parameters);
        let (mut parameters, mut descriptions) = (Vec::new(), Vec::new());
        for (name, schema) in properties {
            let hint = format!("{hint}{}", pascal_case(name));
            let ty = self.python_type(schema, &spec.parameters, &hint);
            let default = match schema.get("default") {
                _ if required.contains(&name.as_str()) => String::new(),
                Some(default) => format!(" = {}", python_literal(default)),
                None => " = ...".to_owned(),
            };
            parameters.push(format!("{name}: {ty}{default}"));
            if let Some(text) = description(schema) {
                descriptions.push(format!("    {name}: {}", one_line(text)));
            }
        }
        let parameters = if properties.keys().any(|name| !is_identifier(name)) {
            "**kwargs: Any".to_owned()
        } else if parameters.is_empty() {
            String::new()
        } else {
            format!("*, {}", parameters.join(", "))
        };
        let result = match &spec.output_schema {
            Some(schema) => self.python_type(schema, schema, &format!("{hint}Result")),
            None => ANY.to_owned(),
        };
        let mut text = spec.description.trim().to_owned();
        if !descriptions.is_empty() {
            let blank = if text.is_empty() { "" } else { "\n\n" };
            let _ = write!(text, "{blank}Args:\n{}", descriptions.join("\n"));
        }
        let body = docstring(&text).unwrap_or_else(|| "    ...\n".to_owned());
        format!("async def {name}({parameters}) -> {result}:\n{body}")
    }

    /// Returns the type for a schema. `root` has its definitions, and `hint` is the name of a class without a title.
    fn python_type(&mut self, schema: &Value, root: &Value, hint: &str) -> String {
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            let Some(target) = reference
                .strip_prefix('#')
                .and_then(|path| root.pointer(path))
            else {
                return ANY.to_owned();
            };
            let name = reference.rsplit('/').next().unwrap_or(hint);
            return self.python_type(target, root, &pascal_case(name));
        }
        let list = |key: &str| schema.get(key).and_then(Value::as_array);
        if let Some(value) = schema.get("const") {
            return format!("Literal[{}]", python_literal(value));
        }
        if let Some(values) = list("enum") {
            let values: Vec<String> = values.iter().map(python_literal).collect();
            return match values.as_slice() {
                [] => ANY.to_owned(),
                values => format!("Literal[{}]", values.join(", ")),
            };
        }
        if let Some(schemas) = list("anyOf").or_else(|| list("oneOf")) {
            return union(
                schemas
                    .iter()
                    .map(|schema| self.python_type(schema, root, hint)),
            );
        }
        if let Some([schema]) = list("allOf").map(Vec::as_slice) {
            return self.python_type(schema, root, hint);
        }
        match schema.get("type") {
            Some(Value::Array(types)) => {
                let types = types.iter().filter_map(Value::as_str);
                union(types.map(|ty| self.named_type(ty, schema, root, hint)))
            }
            Some(Value::String(ty)) => self.named_type(ty, schema, root, hint),
            _ if schema.get("properties").is_some() => self.object_type(schema, root, hint),
            _ => ANY.to_owned(),
        }
    }

    fn named_type(&mut self, ty: &str, schema: &Value, root: &Value, hint: &str) -> String {
        let name = match ty {
            "string" => "str",
            "integer" => "int",
            "number" => "float",
            "boolean" => "bool",
            "null" => "None",
            "array" => return self.array_type(schema, root, &format!("{hint}Item")),
            "object" => return self.object_type(schema, root, hint),
            _ => ANY,
        };
        name.to_owned()
    }

    fn array_type(&mut self, schema: &Value, root: &Value, hint: &str) -> String {
        if let Some(items) = schema.get("prefixItems").and_then(Value::as_array) {
            let items = items.iter().map(|item| self.python_type(item, root, hint));
            let items: Vec<String> = items.collect();
            return match items.as_slice() {
                [] => "tuple[()]".to_owned(),
                items => format!("tuple[{}]", items.join(", ")),
            };
        }
        let items = schema.get("items").unwrap_or(&Value::Null);
        format!("list[{}]", self.python_type(items, root, hint))
    }

    fn object_type(&mut self, schema: &Value, root: &Value, hint: &str) -> String {
        let properties = schema.get("properties").and_then(Value::as_object);
        if let Some(properties) = properties.filter(|properties| !properties.is_empty()) {
            return self.class(schema, properties, root, hint);
        }
        match schema.get("additionalProperties") {
            Some(values @ Value::Object(_)) => {
                format!("dict[str, {}]", self.python_type(values, root, hint))
            }
            _ => "dict[str, Any]".to_owned(),
        }
    }

    /// Returns the class of an object with known keys. Equal schemas have the same class.
    fn class(
        &mut self,
        schema: &Value,
        properties: &Map<String, Value>,
        root: &Value,
        hint: &str,
    ) -> String {
        let definitions = root.get("$defs").unwrap_or(&Value::Null);
        let is_same =
            |class: &&StubClass| class.schema == *schema && class.definitions == *definitions;
        if let Some(class) = self.classes.iter().find(is_same) {
            return class.name.clone();
        }
        let title = schema.get("title").and_then(Value::as_str).map(pascal_case);
        let base = title
            .filter(|title| !title.is_empty())
            .unwrap_or_else(|| hint.to_owned());
        let base = as_name(base);
        let is_used = |name: &String| self.classes.iter().any(|class| class.name == *name);
        let numbered = (2..).map(|number: usize| format!("{base}{number}"));
        let mut names = std::iter::once(base.clone()).chain(numbered);
        let name = names.find(|name| !is_used(name)).unwrap_or(base.clone());
        // The schema may refer to itself, so the class must be known before its fields.
        let index = self.classes.len();
        self.classes.push(StubClass {
            name: name.clone(),
            schema: schema.clone(),
            definitions: definitions.clone(),
            text: String::new(),
        });
        let required = required_names(schema);
        let mut fields = Vec::new();
        for (key, schema) in properties {
            let hint = format!("{base}{}", pascal_case(key));
            let mut ty = self.python_type(schema, root, &hint);
            if !required.contains(&key.as_str()) {
                ty = format!("NotRequired[{ty}]");
            }
            fields.push((key, ty, description(schema)));
        }
        let text = if fields.iter().all(|(key, ..)| is_identifier(key)) {
            let mut text = format!("class {name}(TypedDict):\n");
            text.push_str(&description(schema).and_then(docstring).unwrap_or_default());
            for (key, ty, description) in fields {
                if let Some(description) = description {
                    let _ = writeln!(text, "    # {}", one_line(description));
                }
                let _ = writeln!(text, "    {key}: {ty}");
            }
            text
        } else {
            let quote = |key: &str| python_literal(&Value::from(key));
            let fields = fields
                .iter()
                .map(|(key, ty, _)| format!("{}: {ty}", quote(key)));
            let fields: Vec<String> = fields.collect();
            format!(
                "{name} = TypedDict({}, {{{}}})\n",
                quote(&name),
                fields.join(", ")
            )
        };
        if let Some(class) = self.classes.get_mut(index) {
            class.text = text;
        }
        name
    }
}

/// Returns the union of types without repetition. `Any` includes every other type.
fn union(types: impl Iterator<Item = String>) -> String {
    let mut parts: Vec<String> = Vec::new();
    for ty in types {
        if !parts.contains(&ty) {
            parts.push(ty);
        }
    }
    if parts.is_empty() || parts.iter().any(|part| part == ANY) {
        return ANY.to_owned();
    }
    parts.join(" | ")
}

fn required_names(schema: &Value) -> Vec<&str> {
    let names = schema.get("required").and_then(Value::as_array);
    names
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

fn description(schema: &Value) -> Option<&str> {
    let text = schema.get("description")?.as_str()?.trim();
    (!text.is_empty()).then_some(text)
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns an indented docstring, or `None` if the text is empty.
fn docstring(text: &str) -> Option<String> {
    let text = text.replace('\\', "\\\\").replace("\"\"\"", "\\\"\\\"\\\"");
    let mut lines = text.lines().map(str::trim_end);
    let first = lines.next().filter(|_| !text.is_empty())?;
    let rest: Vec<&str> = lines.collect();
    if rest.is_empty() {
        let first = match first.strip_suffix('"') {
            // A quote at the end would end the docstring early.
            Some(start) => format!("{start}\\\""),
            None => first.to_owned(),
        };
        return Some(format!("    \"\"\"{first}\"\"\"\n"));
    }
    let mut docstring = format!("    \"\"\"{first}\n");
    for line in rest {
        let indent = if line.is_empty() { "" } else { "    " };
        let _ = writeln!(docstring, "{indent}{line}");
    }
    docstring.push_str("    \"\"\"\n");
    Some(docstring)
}

/// Returns a name in the style of a class: `my param` becomes `MyParam`.
fn pascal_case(name: &str) -> String {
    let words = name.split(|character: char| !character.is_ascii_alphanumeric());
    let capitalize = |word: &str| {
        let (first, rest) = word.split_at(word.len().min(1));
        format!("{}{rest}", first.to_ascii_uppercase())
    };
    words.map(capitalize).collect()
}

/// Returns the name with `_` before it if Python does not allow it otherwise.
fn as_name(name: String) -> String {
    let starts_with_digit = name.starts_with(|first: char| first.is_numeric());
    if name.is_empty() || starts_with_digit || KEYWORDS.contains(&name.as_str()) {
        return format!("_{name}");
    }
    name
}

fn is_identifier(name: &str) -> bool {
    let mut characters = name.chars();
    let is_start = |first: char| first.is_alphabetic() || first == '_';
    characters.next().is_some_and(is_start)
        && characters.all(|character| character.is_alphanumeric() || character == '_')
        && !KEYWORDS.contains(&name)
}

/// Returns a value as Python writes it.
fn python_literal(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => python_string(text),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(python_literal).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(map) => {
            let pair = |(key, value): (&String, &Value)| {
                format!("{}: {}", python_string(key), python_literal(value))
            };
            let pairs: Vec<String> = map.iter().map(pair).collect();
            format!("{{{}}}", pairs.join(", "))
        }
    }
}

/// Returns a quoted string: in double quotes if it has only single ones, in single quotes otherwise.
fn python_string(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    let mut quoted = String::from(quote);
    for character in text.chars() {
        match character {
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            _ if character == quote => {
                quoted.push('\\');
                quoted.push(quote);
            }
            _ if character.is_control() => {
                let _ = write!(quoted, "\\x{:02x}", u32::from(character));
            }
            _ => quoted.push(character),
        }
    }
    quoted.push(quote);
    quoted
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    // P-59, P-60: the expected text is what the Python version writes for these schemas, except for two texts of it
    // that are not valid Python.
    #[test]
    fn a_stub_has_the_types_and_signatures_of_the_python_version() {
        let tools: Vec<Value> =
            serde_json::from_str(include_str!("../../tests/data/stub-tools.json")).unwrap();
        let spec = |tool: &Value| {
            let text = |name: &str| tool[name].as_str().unwrap();
            let (name, description) = (text("name"), text("description"));
            let mut spec = ToolSpec::new(name, description, tool["parameters"].clone());
            spec.output_schema =
                Some(tool["output_schema"].clone()).filter(|schema| !schema.is_null());
            spec
        };
        let specs: Vec<ToolSpec> = tools.iter().map(spec).collect();
        let stub = build_stub(specs.iter());
        let expected = include_str!("../../tests/data/stub-tools.pyi");
        let (_, stub) = stub.split_once("\"\"\"\n\n").unwrap();
        for (line, expected) in stub.lines().zip(expected.lines()) {
            assert_eq!(line, expected);
        }
        assert_eq!(stub, expected);
    }
}
