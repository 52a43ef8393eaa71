//! What a service tells of itself at /metrics.

use std::collections::BTreeMap;

use reqwest::{Method, StatusCode};

use super::{Caller, send};

/// All series with their values, as they were at one moment.
#[derive(Debug)]
pub struct Scrape {
    pub text: String,
    series: BTreeMap<String, String>,
}

impl Scrape {
    pub async fn of(caller: &Caller) -> Self {
        let response = send(caller.request(Method::GET, "/metrics")).await;
        assert_eq!(response.status(), StatusCode::OK);
        let text = response.text().await.unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let series = lines.map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.to_owned())
        });
        Self { series: series.collect(), text }
    }

    /// The count of a series, named without `interpreterd_`; 0 where it has never been seen.
    pub fn count(&self, series: &str) -> u64 {
        self.series.get(&format!("interpreterd_{series}")).map_or(0, |count| count.parse().unwrap())
    }

    /// The seconds of a series, which must be there.
    pub fn seconds(&self, series: &str) -> f64 {
        self.series[&format!("interpreterd_{series}")].parse().unwrap()
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.series.keys().map(String::as_str)
    }
}
