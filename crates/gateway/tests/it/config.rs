//! What users get to see of the configuration.

use tandem_gateway::Config;
use tandem_gateway::config::Worker;

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

#[test]
fn errors_about_engines_show_no_secrets() {
    for url in ["http://user:secret@a:8000", "http://a@api_key=secret,kind=tgi", "ftp://a@api_key=secret"] {
        let listed = Config { worker_urls: vec![url.to_owned()], ..Config::default() };
        let worker =
            Worker { url: url.to_owned(), ..serde_json::from_str(r#"{"url": "x"}"#).expect("a worker") };
        let described = Config { workers: vec![worker], ..Config::default() };
        for config in [listed, described] {
            let error = config.resolve().expect_err("refused").to_string();
            assert!(error.starts_with("engine \"") && !error.contains("secret"), "{error}");
        }
    }
}

#[test]
fn a_written_configuration_shows_no_key_of_an_engine() {
    let url = "http://a:8000@kind=vllm,api_key=secret,max_running=4";
    let mut worker: Worker = serde_json::from_str(r#"{"url": "x", "api_key": "secret"}"#).expect("a worker");
    worker.url = url.to_owned();
    let config = Config { worker_urls: vec![url.to_owned()], workers: vec![worker], ..Config::default() };
    let written = serde_json::to_string(&config).expect("writes");
    assert!(!written.contains("secret"), "{written}");
    assert_eq!(written.matches("http://a:8000@kind=vllm,api_key=***,max_running=4").count(), 2);
}
