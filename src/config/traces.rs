//! Settings of the traces: which collector takes them, and how many.

use clap::Args;
use percent_encoding::percent_decode_str;
use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};

use super::vendor;

/// Where a collector takes traces, below its base URL.
const PATH: &str = "v1/traces";

/// Where traces of requests go, in OTLP as protobuf over HTTP.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Traces")]
pub struct TraceSettings {
    /// Base URL of a collector that takes OTLP over HTTP, such as http://localhost:4318; else OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT; none: no traces
    #[arg(long, env = "INTERPRETERD_OTLP_ENDPOINT")]
    pub otlp_endpoint: Option<String>,
    /// Headers that the collector wants, as NAME=VALUE,NAME=VALUE with percent-encoded values; else OTEL_EXPORTER_OTLP_TRACES_HEADERS or OTEL_EXPORTER_OTLP_HEADERS
    #[arg(long, env = "INTERPRETERD_OTLP_HEADERS", hide_env_values = true)]
    pub otlp_headers: Option<SecretString>,
    /// Share of the requests that are traced, from 0 to 1; a caller's traceparent decides for its own
    #[arg(long, env = "INTERPRETERD_TRACE_RATIO", default_value_t = 1.0, value_parser = ratio)]
    pub trace_ratio: f64,
    /// The collector; made from the settings above and the vendor's variables.
    #[arg(skip)]
    pub collector: Option<Collector>,
}

/// Who takes traces, and how many.
#[derive(Debug, Clone)]
pub struct Collector {
    /// Where they go.
    pub url: Url,
    /// What each request to it holds besides; the values are marked as secret.
    pub headers: HeaderMap,
    /// Share of the requests that are traced.
    pub ratio: f64,
    /// What the service is called, where that is not its own name.
    pub service: Option<String>,
}

/// Why traces cannot go where they should.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// Not a URL that can be used. It is not told: a key may stand in it.
    #[error(
        "{0} must be a URL that begins with http:// or https://, such as http://localhost:4318, \
         without user, query and fragment (keys belong into otlp_headers)"
    )]
    Endpoint(&'static str),
    /// Not pairs of names and values. What they are is not told: keys stand in them.
    #[error(
        "{setting} must be NAME=VALUE pairs with commas between, values percent-encoded; pair {pair} is not one"
    )]
    Headers {
        /// Which setting.
        setting: &'static str,
        /// Which pair, from 1.
        pair: usize,
    },
    /// The program cannot send traces.
    #[error("{0} needs what this program was built without: the cargo feature otlp")]
    NotBuilt(&'static str),
}

impl TraceSettings {
    /// Puts the collector into `collector`, where one is named.
    pub(super) fn resolve(&mut self) -> Result<(), TraceError> {
        self.collector = self.collector_with(vendor)?;
        Ok(())
    }

    fn collector_with(
        &self,
        vendor: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Collector>, TraceError> {
        let own = self.otlp_endpoint.clone().filter(|text| !text.is_empty());
        // what a host sets for all of its programs stops none that has no use for it
        if own.is_none() && (cfg!(not(feature = "otlp")) || is_off(&vendor)) {
            return Ok(None);
        }
        let of_vendor = |name: &'static str| Some((name, vendor(name)?));
        let of_traces = || of_vendor("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
        let of_all = || of_vendor("OTEL_EXPORTER_OTLP_ENDPOINT");
        let (name, url) = if let Some(text) = own {
            ("otlp_endpoint", below("otlp_endpoint", &text)?)
        } else if let Some((name, text)) = of_traces() {
            (name, parsed(name, &text)?) // as it is, says the specification
        } else if let Some((name, text)) = of_all() {
            (name, below(name, &text)?)
        } else {
            return Ok(None);
        };
        if cfg!(not(feature = "otlp")) {
            return Err(TraceError::NotBuilt(name));
        }
        let own = self.otlp_headers.as_ref().map(|text| text.expose_secret().to_owned());
        let own = own.filter(|text| !text.is_empty()).map(|text| ("otlp_headers", text));
        let given = own
            .or_else(|| of_vendor("OTEL_EXPORTER_OTLP_TRACES_HEADERS"))
            .or_else(|| of_vendor("OTEL_EXPORTER_OTLP_HEADERS"));
        let headers = given.map_or(Ok(HeaderMap::new()), |(name, text)| headers(name, &text))?;
        let service = vendor("OTEL_SERVICE_NAME");
        Ok(Some(Collector { url, headers, ratio: self.trace_ratio, service }))
    }
}

/// The vendor's ways to say no, or to speak what is not spoken here.
fn is_off(vendor: impl Fn(&str) -> Option<String>) -> bool {
    let is = |name: &str, word: &str| {
        vendor(name).is_some_and(|text| text.trim().eq_ignore_ascii_case(word))
    };
    let protocol = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL";
    let is_grpc = match vendor(protocol) {
        Some(_) => is(protocol, "grpc"),
        None => is("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
    };
    is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none") || is_grpc
}

/// The place for traces below a base URL.
fn below(setting: &'static str, text: &str) -> Result<Url, TraceError> {
    let mut url = parsed(setting, text)?;
    let path = format!("{}/{PATH}", url.path().trim_end_matches('/'));
    url.set_path(&path);
    Ok(url)
}

fn parsed(setting: &'static str, text: &str) -> Result<Url, TraceError> {
    let url = Url::parse(text.trim()).map_err(|_| TraceError::Endpoint(setting))?;
    let is_plain = url.username().is_empty()
        && url.password().is_none()
        && url.query().is_none()
        && url.fragment().is_none();
    if matches!(url.scheme(), "http" | "https") && url.has_host() && is_plain {
        return Ok(url);
    }
    Err(TraceError::Endpoint(setting))
}

/// Read as OpenTelemetry's own exporters do.
fn headers(setting: &'static str, text: &str) -> Result<HeaderMap, TraceError> {
    let mut headers = HeaderMap::new();
    let pairs = text.split(',').enumerate().filter(|(_, pair)| !pair.trim().is_empty());
    for (index, pair) in pairs {
        let (name, value) = header(pair).ok_or(TraceError::Headers { setting, pair: index + 1 })?;
        headers.insert(name, value);
    }
    Ok(headers)
}

fn header(pair: &str) -> Option<(HeaderName, HeaderValue)> {
    let (name, value) = pair.split_once('=')?;
    let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
    let value = percent_decode_str(value.trim()).collect::<Vec<u8>>();
    let mut value = HeaderValue::from_bytes(&value).ok()?;
    value.set_sensitive(true);
    Some((name, value))
}

fn ratio(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        _ => Err("a number from 0 to 1 is needed".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::{Command, FromArgMatches};

    use super::*;

    /// What flags and the vendor's variables give.
    fn resolved(
        flags: &[&str],
        variables: &[(&str, &str)],
    ) -> Result<Option<Collector>, TraceError> {
        let command = TraceSettings::augment_args(Command::new("serve"));
        let matches = command.get_matches_from(["serve"].iter().chain(flags));
        let settings = TraceSettings::from_arg_matches(&matches).expect("good flags");
        settings.collector_with(|name| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    #[cfg(feature = "otlp")]
    fn url(flags: &[&str], variables: &[(&str, &str)]) -> String {
        resolved(flags, variables).expect("good").expect("a collector").url.to_string()
    }

    #[cfg(feature = "otlp")]
    #[test]
    fn the_path_is_added_to_a_base_url_and_not_to_one_for_traces_alone() {
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://all.example/otlp/");
        let exact = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://traces.example/in");
        let own = ["--otlp-endpoint", "http://own.example:4318"];
        assert_eq!(url(&own, &[base, exact]), "http://own.example:4318/v1/traces");
        assert_eq!(url(&["--otlp-endpoint", ""], &[base]), "https://all.example/otlp/v1/traces");
        assert_eq!(url(&[], &[base, exact]), "https://traces.example/in");
        assert!(resolved(&[], &[]).expect("good").is_none());
    }

    #[cfg(feature = "otlp")]
    #[test]
    fn headers_are_read_as_the_specification_has_them_and_are_secret() {
        let endpoint = ["--otlp-endpoint", "http://own.example"];
        let told = |flags: &[&str], variables: &[(&str, &str)]| {
            resolved(&[&endpoint, flags].concat(), variables).expect("good").expect("one").headers
        };
        let vendors = [
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-all=1"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-traces=1"),
        ];
        let own = told(&["--otlp-headers", "authorization=Basic%20YQ==, x-team = a ,"], &vendors);
        assert_eq!(own.len(), 2);
        assert_eq!(own["authorization"], "Basic YQ==");
        assert_eq!(own["x-team"], "a");
        assert!(own.values().all(HeaderValue::is_sensitive));
        assert_eq!(told(&[], &vendors).keys().collect::<Vec<_>>(), ["x-traces"]);
        assert_eq!(told(&[], &vendors[..1]).keys().collect::<Vec<_>>(), ["x-all"]);
    }

    #[cfg(feature = "otlp")]
    #[test]
    fn what_cannot_be_used_is_refused_without_being_told() {
        for text in
            ["localhost:4318", "ftp://a", "http://u:secret@a", "http://a/?key=secret", "http://"]
        {
            let why = resolved(&["--otlp-endpoint", text], &[]).expect_err("refused").to_string();
            assert!(why.contains("otlp_endpoint") && !why.contains("secret"), "{why}");
        }
        let vendors = [("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector")];
        let why = resolved(&[], &vendors).expect_err("refused").to_string();
        assert!(why.contains("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"), "{why}");
        for text in ["a=1,secret", "a=1,b c=secret", "a=1,b=%0asecret"] {
            let flags = ["--otlp-endpoint", "http://a", "--otlp-headers", text];
            let why = resolved(&flags, &[]).expect_err("refused").to_string();
            assert!(why.contains("pair 2") && !why.contains("secret"), "{why}");
        }
    }

    #[cfg(not(feature = "otlp"))]
    #[test]
    fn a_program_that_was_built_without_it_says_so() {
        let refused = resolved(&["--otlp-endpoint", "http://a"], &[]).expect_err("refused");
        assert!(matches!(refused, TraceError::NotBuilt("otlp_endpoint")));
        assert!(resolved(&[], &[]).expect("good").is_none());
    }

    #[test]
    fn a_host_whose_programs_send_none_or_speak_another_protocol_gets_none() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all.example");
        for off in [
            ("OTEL_SDK_DISABLED", "true"),
            ("OTEL_TRACES_EXPORTER", "none"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
        ] {
            assert!(resolved(&[], &[endpoint, off]).expect("good").is_none(), "{off:?}");
        }
        let on = [endpoint, ("OTEL_SDK_DISABLED", "false"), ("OTEL_TRACES_EXPORTER", "otlp")];
        assert_eq!(resolved(&[], &on).expect("good").is_some(), cfg!(feature = "otlp"));
    }

    #[test]
    fn a_ratio_is_a_number_from_0_to_1() {
        assert_eq!(ratio("0.25"), Ok(0.25));
        for text in ["-0.1", "1.5", "NaN", "half", ""] {
            assert!(ratio(text).is_err(), "{text}");
        }
    }
}
