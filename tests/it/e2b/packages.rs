//! Packages in sandboxes of E2B.

use serde_json::json;

use crate::packages::{ready, usual};
use crate::support::double::Double;
use crate::support::problem;

#[tokio::test]
async fn packages_are_installed_into_the_sandbox_that_asks_for_them() {
    let index = usual();
    let double = Double::start(&[]);
    let server = double.serve_entry(&format!("package_index = \"{}\"\n", index.url));
    let caller = server.caller();
    let session = caller.session_with(json!({"packages": ["demo-a"]})).await;
    assert_eq!(ready(&session).await["state"], "ready");
    let code = "import demo_a, subprocess, sys\ndemo_a.VERSION, subprocess.run([sys.executable, '-c', 'import demo_a, demo_b; print(demo_b.VERSION)'], capture_output=True, text=True).stdout";
    assert_eq!(session.text(code).await, "('2.0', '1.0\\n')");
    let other = caller.session().await;
    let without = other.exec("import demo_a").await;
    assert_eq!(without["error_detail"]["name"], "ModuleNotFoundError");
}

#[tokio::test]
async fn packages_that_cannot_be_had_are_a_clear_problem_and_cost_no_sandbox() {
    let index = usual();
    let double = Double::start(&[]);
    let server = double.serve_entry(&format!("package_index = \"{}\"\n", index.url));
    let caller = server.caller();
    for package in ["nosuch", "demo-a==9"] {
        let body = json!({"code": "1", "packages": [package]});
        let answer = caller.post("/v1/execute", body).await;
        assert_eq!(problem(&answer), (422, "package_not_found".into()));
        assert!(answer.1["detail"].as_str().unwrap().contains(package), "{}", answer.1);
        double.has_sandboxes(0).await;
    }
}
