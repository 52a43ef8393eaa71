//! The smoke test for the real cloud says of the double what it would say of that.

use crate::support::double::{Double, KEY};
use crate::support::live::smoke;

#[test]
fn the_smoke_test_passes_against_the_double_and_fails_where_something_is_wrong() {
    let double = Double::start(&[]);
    let place = [("E2B_API_URL", double.url.as_str()), ("E2B_SANDBOX_URL", double.url.as_str())];
    let with = |key| [place.as_slice(), &[("E2B_API_KEY", key)]].concat();
    let (good, told) = smoke("e2b", &with(KEY));
    assert!(good && told.contains("the provider e2b works with this cloud"), "{told}");
    let (good, told) = smoke("e2b", &with("another-key"));
    assert!(!good, "{told}");
    let (good, told) = smoke("e2b", &place);
    assert!(good && told.starts_with("not tried"), "{told}");
}
