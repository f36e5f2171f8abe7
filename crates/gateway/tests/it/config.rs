//! What users get to see of the configuration.

use tandem_gateway::Config;

#[test]
fn the_schema_documents_every_key() {
    fn walk(schema: &serde_json::Value, path: &str, missing: &mut Vec<String>) {
        if let Some(properties) = schema["properties"].as_object() {
            for (name, property) in properties {
                if property["description"].as_str().is_none_or(str::is_empty) {
                    missing.push(format!("{path}.{name}"));
                }
            }
        }
    }
    let schema = Config::json_schema();
    let mut missing = Vec::new();
    walk(&schema, "", &mut missing);
    for (name, definition) in schema["$defs"].as_object().expect("definitions") {
        walk(definition, name, &mut missing);
    }
    assert_eq!(missing, Vec::<String>::new());
    assert!(schema["properties"]["worker_urls"].is_object());
    assert!(schema["$defs"]["Trace"]["properties"]["environment"].is_null(), "inner keys are not for files");
}

#[test]
fn the_defaults_survive_being_written_and_read() {
    let written = serde_json::to_value(Config::default()).expect("writes");
    let read: Config = serde_json::from_value(written.clone()).expect("reads");
    assert_eq!(serde_json::to_value(read).expect("writes"), written);
}
