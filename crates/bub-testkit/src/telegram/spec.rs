//! Checks requests against the specification of the API, if it is available.

#![expect(
    clippy::indexing_slicing,
    reason = "indexing a missing JSON field returns `null`"
)]

use serde_json::{Map, Value};

pub(super) struct BotApiSpec(Value);

impl BotApiSpec {
    /// Reads `telegram/bot-api-spec.json` below `BUB_FIXTURES`. Returns `None` if the variable is not set.
    #[expect(clippy::expect_used, reason = "missing data must fail the test")]
    pub(super) fn load() -> Option<Self> {
        if !crate::has_fixtures() {
            return None;
        }
        let path = crate::fixtures("telegram").join("bot-api-spec.json");
        let text = std::fs::read_to_string(path).expect("the specification can be read");
        Some(Self(serde_json::from_str(&text).expect("it is JSON")))
    }

    /// Returns the violations of a call.
    pub(super) fn check(&self, method: &str, params: &Value) -> Vec<String> {
        let Some(spec) = self.0["methods"].get(method) else {
            return vec![format!("unknown method {method}")];
        };
        let Some(params) = params.as_object() else {
            return vec![format!("{method}: the parameters are not an object")];
        };
        let mut violations = Vec::new();
        self.check_fields(method, &spec["fields"], params, &mut violations);
        violations
    }

    fn check_fields(
        &self,
        path: &str,
        fields: &Value,
        values: &Map<String, Value>,
        violations: &mut Vec<String>,
    ) {
        let fields = fields.as_array().map(Vec::as_slice).unwrap_or_default();
        // An item of an album refers to the file by name.
        let is_attached = |name: &str, value: &Value| {
            let reference = format!("attach://{name}\"");
            let mut others = values.values();
            value.get("filename").is_some()
                && others.any(|other| other.to_string().contains(&reference))
        };
        for (name, value) in values {
            if is_attached(name, value) {
                continue;
            }
            match fields.iter().find(|field| field["name"] == name.as_str()) {
                None => violations.push(format!("{path} has no field {name}")),
                Some(field) => {
                    let types = field["types"]
                        .as_array()
                        .map(Vec::as_slice)
                        .unwrap_or_default();
                    let names: Vec<&str> = types.iter().filter_map(Value::as_str).collect();
                    if !names.iter().any(|kind| self.is_valid(kind, value)) {
                        violations.push(format!(
                            "{path}.{name} is {value}, expected {}",
                            names.join(" or ")
                        ));
                    }
                }
            }
        }
        for field in fields.iter().filter(|field| field["required"] == true) {
            let name = field["name"].as_str().unwrap_or_default();
            if !values.contains_key(name) {
                violations.push(format!("{path} lacks {name}"));
            }
        }
    }

    fn is_valid(&self, kind: &str, value: &Value) -> bool {
        if let Some(inner) = kind.strip_prefix("Array of ") {
            return value
                .as_array()
                .is_some_and(|items| items.iter().all(|item| self.is_valid(inner, item)));
        }
        match kind {
            "Integer" => value.is_i64(),
            "Float" => value.is_number(),
            "String" => value.is_string(),
            "Boolean" => value.is_boolean(),
            "InputFile" => value.get("filename").is_some(),
            _ => {
                let spec = &self.0["types"][kind];
                if let Some(subtypes) = spec["subtypes"].as_array() {
                    return subtypes
                        .iter()
                        .filter_map(Value::as_str)
                        .any(|subtype| self.is_valid(subtype, value));
                }
                let Some(values) = value.as_object() else {
                    return false;
                };
                let mut violations = Vec::new();
                self.check_fields(kind, &spec["fields"], values, &mut violations);
                violations.is_empty()
            }
        }
    }
}
