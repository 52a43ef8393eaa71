//! What the documents say is so.

const README: &str = include_str!("../../README.md");

#[test]
fn the_table_of_settings_is_the_programs_own() {
    let table = interpreterd::config::table();
    assert!(README.contains(&table), "put the output of `interpreterd settings` into the README");
}
