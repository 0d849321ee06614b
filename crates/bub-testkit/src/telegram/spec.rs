//! Checks requests against the specification of the API, if it is available.

#![expect(
    clippy::indexing_slicing,
    reason = "indexing a missing JSON field returns `null`"
)]

use serde_json::{Map, Value};

pub(super) struct BotApiSpec(Value);

impl BotApiSpec {
    /// Reads `telegram/bot-api-spec.json` below `BUB_FIXTURES`.
    #[expect(
        clippy::disallowed_methods,
        reason = "a variable of the tests, not a setting"
    )]
    pub(super) fn load() -> Option<Self> {
        let root = std::env::var_os("BUB_FIXTURES")?;
        let text =
            std::fs::read_to_string(std::path::Path::new(&root).join("telegram/bot-api-spec.json"))
                .ok()?;
        serde_json::from_str(&text).ok().map(Self)
    }

    /// Returns the violations of a call.
    pub(super) fn check(&self, method: &str, params: &Value) -> Vec<String> {
        let Some(known) = self.0["methods"].get(method) else {
            return vec![format!("unknown method {method}")];
        };
        let Some(params) = params.as_object() else {
            return vec![format!("{method}: the parameters are not an object")];
        };
        let mut wrong = Vec::new();
        self.check_fields(method, &known["fields"], params, &mut wrong);
        wrong
    }

    fn check_fields(
        &self,
        path: &str,
        fields: &Value,
        given: &Map<String, Value>,
        wrong: &mut Vec<String>,
    ) {
        let fields = fields.as_array().map(Vec::as_slice).unwrap_or_default();
        for (name, value) in given {
            match fields.iter().find(|field| field["name"] == name.as_str()) {
                None => wrong.push(format!("{path} has no field {name}")),
                Some(field) => {
                    let types = field["types"]
                        .as_array()
                        .map(Vec::as_slice)
                        .unwrap_or_default();
                    let names: Vec<&str> = types.iter().filter_map(Value::as_str).collect();
                    if !names.iter().any(|kind| self.fits(kind, value)) {
                        wrong.push(format!(
                            "{path}.{name} is {value}, expected {}",
                            names.join(" or ")
                        ));
                    }
                }
            }
        }
        for field in fields.iter().filter(|field| field["required"] == true) {
            let name = field["name"].as_str().unwrap_or_default();
            if !given.contains_key(name) {
                wrong.push(format!("{path} lacks {name}"));
            }
        }
    }

    fn fits(&self, kind: &str, value: &Value) -> bool {
        if let Some(inner) = kind.strip_prefix("Array of ") {
            return value
                .as_array()
                .is_some_and(|items| items.iter().all(|item| self.fits(inner, item)));
        }
        match kind {
            "Integer" => value.is_i64(),
            "Float" => value.is_number(),
            "String" => value.is_string(),
            "Boolean" => value.is_boolean(),
            "InputFile" => value.get("filename").is_some(),
            _ => {
                let known = &self.0["types"][kind];
                if let Some(subtypes) = known["subtypes"].as_array() {
                    return subtypes
                        .iter()
                        .filter_map(Value::as_str)
                        .any(|subtype| self.fits(subtype, value));
                }
                let Some(given) = value.as_object() else {
                    return false;
                };
                let mut wrong = Vec::new();
                self.check_fields(kind, &known["fields"], given, &mut wrong);
                wrong.is_empty()
            }
        }
    }
}
