//! The guest Python and its installation.

use crate::support::server::{caller, command};

#[test]
fn installing_again_does_nothing() {
    let output = command().args(["guest", "install"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.starts_with("the guest Python is there: "), "{said}");
}

#[test]
fn a_python_that_cannot_be_used_is_refused_by_its_reason() {
    let output =
        command().args(["guest", "install", "--guest-python", "/bin/false"]).output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("/bin/false: it cannot be run") && said.contains("apt-get install python3"),
        "{said}"
    );
}

#[tokio::test]
async fn the_packages_of_the_guest_work() {
    let caller = caller();
    let session = caller.session().await;
    let code = "import numpy as np, scipy.optimize, sklearn.linear_model, seaborn, sympy, openpyxl, PIL.Image, pandas as pd, sqlite3\n\
         model = sklearn.linear_model.LinearRegression().fit([[1], [2]], [2, 4])\n\
         pd.DataFrame({'a': [1]}).to_excel('x.xlsx')\n\
         round(float(model.predict([[3]])[0])), float((np.ones((500, 500)) @ np.ones((500, 500))).sum()), str(sympy.integrate('x')), pd.read_excel('x.xlsx').shape";
    assert_eq!(session.text(code).await, "(6, 125000000.0, 'x**2/2', (1, 2))");
}
