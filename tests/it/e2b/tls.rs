//! E2B behind TLS, with a certificate of a private authority.

use crate::support::double::Double;
use crate::support::problem;
use serde_json::json;

#[tokio::test]
async fn a_private_authority_is_trusted_where_the_entry_names_it_and_nowhere_else() {
    let folder = crate::support::server::open_folder();
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| folder.path().join(name));
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let [certificate, key] = [&certificate, &key].map(|path| path.to_str().unwrap());
    let double = Double::start(&["--tls", certificate, key]);
    let server = double.serve_entry(&format!("ca_file = \"{certificate}\"\n"));
    let session_server = server.caller();
    let session = session_server.session().await;
    session.put("a.txt", "over TLS").await;
    assert_eq!(session.text("print(open('a.txt').read())").await, "over TLS\n");
    let answer = Double::serve(&double, &[("DEFAULT_PROVIDER", "local")])
        .caller()
        .post("/v1/sessions", json!({"provider": "e2b"}))
        .await;
    assert_eq!(problem(&answer), (503, "provider_not_ready".into()));
}
