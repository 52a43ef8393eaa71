//! The contract: written down, compared, shown.

use serde_json::Value;

use crate::support::server::caller;

const COMMITTED: &str = include_str!("../../openapi/interpreterd.json");

#[test]
fn the_committed_document_is_what_the_handlers_say() {
    assert_eq!(
        COMMITTED,
        interpreterd::api::document(),
        "run `make openapi` and read the difference"
    );
}

#[tokio::test]
async fn the_document_is_served_and_shown_without_any_other_host() {
    let caller = caller();
    let (_, served) = caller.get("/openapi.json").await;
    assert_eq!(served, serde_json::from_str::<Value>(COMMITTED).unwrap());
    let page = crate::support::send(caller.request(reqwest::Method::GET, "/docs/"))
        .await
        .text()
        .await
        .unwrap();
    assert!(page.contains("swagger-ui"), "{page}");
    assert!(!page.contains("http://") && !page.contains("https://"), "{page}");
}

#[test]
fn every_operation_documents_its_problems_as_problems() {
    let document: Value = serde_json::from_str(COMMITTED).unwrap();
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            for (status, response) in operation["responses"].as_object().unwrap() {
                let described =
                    response["description"].as_str().is_some_and(|text| !text.is_empty());
                assert!(described, "{method} {path} {status}");
                let is_problem = response["content"].get("application/problem+json").is_some();
                assert_eq!(is_problem, status.starts_with(['4', '5']), "{method} {path} {status}");
            }
        }
    }
}
