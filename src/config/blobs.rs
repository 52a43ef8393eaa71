//! Settings of the blobs: where contents of files are kept.

use std::path::PathBuf;

use clap::Args;
use secrecy::{ExposeSecret, SecretString};

use super::key::{self, KeyError};
use super::vendor;

/// The region of services that have none, as their own documentation has it.
const ANY_REGION: &str = "us-east-1";
/// By these AWS tells a program in a container which role it has.
const ROLE_VARIABLES: [[&str; 2]; 3] = [
    ["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"],
    ["AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"],
    ["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"],
];

/// The place for contents of files.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Blobs")]
pub struct BlobSettings {
    /// Bucket for contents of files, as s3://BUCKET or s3://BUCKET/PREFIX; none: a folder in the data folder
    #[arg(long, env = "INTERPRETERD_BLOBS_URL")]
    pub blobs_url: Option<String>,
    /// URL of a service that speaks S3 and is not AWS's own; else AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL
    #[arg(long, env = "INTERPRETERD_BLOBS_ENDPOINT")]
    pub blobs_endpoint: Option<String>,
    /// Region of the bucket; else AWS_REGION or AWS_DEFAULT_REGION, or us-east-1 where an endpoint is named
    #[arg(long, env = "INTERPRETERD_BLOBS_REGION")]
    pub blobs_region: Option<String>,
    /// Access key for the bucket; else AWS_ACCESS_KEY_ID with its secret, else on AWS the role of the container or machine
    #[arg(long, env = "INTERPRETERD_BLOBS_ACCESS_KEY_ID")]
    pub blobs_access_key_id: Option<String>,
    /// Secret of the access key
    #[arg(long, env = "INTERPRETERD_BLOBS_SECRET_ACCESS_KEY", hide_env_values = true)]
    pub blobs_secret_access_key: Option<SecretString>,
    /// File that holds the secret, in place of INTERPRETERD_BLOBS_SECRET_ACCESS_KEY
    #[arg(long, env = "INTERPRETERD_BLOBS_SECRET_ACCESS_KEY_FILE")]
    pub blobs_secret_access_key_file: Option<PathBuf>,
    /// PEM file of certificates that are trusted for the bucket besides the system's
    #[arg(long, env = "INTERPRETERD_BLOBS_CA_FILE")]
    pub blobs_ca_file: Option<PathBuf>,
    /// Most bytes that may wait in the data folder for a bucket that is down; a small file counts 16 KiB
    #[arg(long, env = "INTERPRETERD_BLOBS_STAGED_BYTES", default_value_t = 10 << 30)]
    pub blobs_staged_bytes: u64,
}

/// A bucket that speaks S3, ready to be used.
#[derive(Debug, Clone)]
pub struct Bucket {
    /// Its name.
    pub name: String,
    /// Below it are our blobs, where they have not the bucket for themselves.
    pub prefix: Option<String>,
    /// The service, where it is not AWS's own.
    pub endpoint: Option<String>,
    /// The region.
    pub region: String,
    /// By what requests are signed.
    pub credentials: BucketCredentials,
    /// Certificates that are trusted besides the system's.
    pub ca_file: Option<PathBuf>,
    /// Most bytes that may wait for it.
    pub staged_bytes: u64,
}

/// By what requests to a bucket are signed.
#[derive(Debug, Clone)]
pub enum BucketCredentials {
    /// An access key.
    Key {
        /// Its id.
        id: String,
        /// Its secret.
        secret: SecretString,
        /// The token of a temporary one.
        token: Option<SecretString>,
    },
    /// A role of AWS's: of the container, by the variables that name it, or of the machine.
    Role(Vec<(&'static str, String)>),
}

/// Why a place cannot be named so.
#[derive(Debug, thiserror::Error)]
pub enum BlobError {
    /// Not a bucket's.
    #[error("blobs_url does not begin with s3://")]
    Scheme,
    /// No bucket can be called so.
    #[error(
        "the name of the bucket must be 3 to 63 lower-case letters, digits, dots and hyphens, as in s3://my-bucket/prefix"
    )]
    Name,
    /// Not a prefix that we make.
    #[error("the prefix in blobs_url must be names of letters, digits and . _ -, with / between")]
    Prefix,
    /// Not a service's address.
    #[error(
        "blobs_endpoint must be a URL that begins with https:// or http://, such as https://s3.example.com"
    )]
    Endpoint,
    /// No region was named.
    #[error("the bucket has no region: set blobs_region, or blobs_endpoint where it is not AWS's")]
    NoRegion,
    /// The region is none.
    #[error("blobs_region must be lower-case letters, digits and hyphens, as in us-west-2")]
    Region,
    /// An access key stands without its other half.
    #[error(
        "an access key is its id and its secret: one of blobs_access_key_id and blobs_secret_access_key is missing"
    )]
    HalfKey,
    /// Nothing to sign with.
    #[error(
        "there is no key for the bucket: set blobs_access_key_id and blobs_secret_access_key, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    )]
    NoKey,
    /// The file of the secret has none.
    #[error(transparent)]
    Key(#[from] KeyError),
}

impl Default for BlobSettings {
    fn default() -> Self {
        Self {
            blobs_url: None,
            blobs_endpoint: None,
            blobs_region: None,
            blobs_access_key_id: None,
            blobs_secret_access_key: None,
            blobs_secret_access_key_file: None,
            blobs_ca_file: None,
            blobs_staged_bytes: 10 << 30,
        }
    }
}

impl BlobSettings {
    /// The bucket, where one is named.
    ///
    /// # Errors
    /// [`BlobError`] when the settings do not describe one.
    pub fn bucket(&self) -> Result<Option<Bucket>, BlobError> {
        self.bucket_with(vendor)
    }

    /// Whether the settings can be used; the secret is read from its file, which may be root's.
    pub(super) fn check(&mut self) -> Result<(), BlobError> {
        if filled(self.blobs_url.as_ref()).is_none() {
            return Ok(());
        }
        let given = self.blobs_secret_access_key.take();
        let given = given.filter(|secret| !secret.expose_secret().is_empty());
        let file = self.blobs_secret_access_key_file.take();
        let file = file.filter(|path| !path.as_os_str().is_empty());
        self.blobs_secret_access_key = key::given(given, file.as_deref())?;
        self.bucket().map(drop)
    }

    fn bucket_with(
        &self,
        vendor: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Bucket>, BlobError> {
        let Some(url) = filled(self.blobs_url.as_ref()) else { return Ok(None) };
        let rest = url.strip_prefix("s3://").ok_or(BlobError::Scheme)?;
        let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.trim_end_matches('/');
        if !is_bucket(name) {
            return Err(BlobError::Name);
        }
        if !prefix.is_empty() && !prefix.split('/').all(is_segment) {
            return Err(BlobError::Prefix);
        }
        let own = filled(self.blobs_endpoint.as_ref()).cloned();
        let endpoint = own
            .or_else(|| vendor("AWS_ENDPOINT_URL_S3"))
            .or_else(|| vendor("AWS_ENDPOINT_URL"))
            .map(|url| url.trim_end_matches('/').to_owned());
        if !endpoint.as_deref().is_none_or(is_endpoint) {
            return Err(BlobError::Endpoint);
        }
        let own = filled(self.blobs_region.as_ref()).cloned();
        let region = own
            .or_else(|| vendor("AWS_REGION"))
            .or_else(|| vendor("AWS_DEFAULT_REGION"))
            .or_else(|| endpoint.is_some().then(|| ANY_REGION.to_owned()))
            .ok_or(BlobError::NoRegion)?;
        // it becomes a part of the address that calls go to
        let is_good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        if !region.bytes().all(is_good) {
            return Err(BlobError::Region);
        }
        Ok(Some(Bucket {
            name: name.to_owned(),
            prefix: Some(prefix.to_owned()).filter(|prefix| !prefix.is_empty()),
            credentials: self.credentials(endpoint.is_none(), vendor)?,
            endpoint,
            region,
            ca_file: self.blobs_ca_file.clone().filter(|path| !path.as_os_str().is_empty()),
            staged_bytes: self.blobs_staged_bytes,
        }))
    }

    /// A key whole from one place: ours, else the vendor's; else a role, which only AWS itself gives.
    fn credentials(
        &self,
        is_aws: bool,
        vendor: impl Fn(&str) -> Option<String>,
    ) -> Result<BucketCredentials, BlobError> {
        let id = filled(self.blobs_access_key_id.as_ref()).cloned();
        let secret = self.blobs_secret_access_key.clone();
        let secret = secret.filter(|secret| !secret.expose_secret().is_empty());
        match (id, secret) {
            (Some(id), Some(secret)) => {
                return Ok(BucketCredentials::Key { id, secret, token: None });
            }
            (None, None) => {}
            _ => return Err(BlobError::HalfKey),
        }
        match (vendor("AWS_ACCESS_KEY_ID"), vendor("AWS_SECRET_ACCESS_KEY")) {
            (Some(id), Some(secret)) => {
                let token = vendor("AWS_SESSION_TOKEN").map(SecretString::from);
                return Ok(BucketCredentials::Key { id, secret: secret.into(), token });
            }
            (None, None) => {}
            _ => return Err(BlobError::HalfKey),
        }
        for names in ROLE_VARIABLES {
            let named = names.iter().map(|name| Some((*name, vendor(name)?)));
            if let Some(named) = named.collect() {
                return Ok(BucketCredentials::Role(named));
            }
        }
        if is_aws { Ok(BucketCredentials::Role(Vec::new())) } else { Err(BlobError::NoKey) }
    }
}

/// A setting that is set to nothing is not set.
fn filled(setting: Option<&String>) -> Option<&String> {
    setting.filter(|text| !text.is_empty())
}

/// <https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html>
fn is_bucket(name: &str) -> bool {
    let is_end = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    (3..=63).contains(&name.len())
        && name.bytes().all(|b| is_end(b) || b == b'.' || b == b'-')
        && name.bytes().next().is_some_and(is_end)
        && name.bytes().last().is_some_and(is_end)
        && !name.contains("..")
}

fn is_segment(name: &str) -> bool {
    let is_good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    !matches!(name, "" | "." | "..") && name.bytes().all(is_good)
}

/// Scheme, host, perhaps a port and a path.
fn is_endpoint(url: &str) -> bool {
    let rest = url.strip_prefix("https://").or_else(|| url.strip_prefix("http://"));
    let is_good = |b: u8| {
        b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-' | b':' | b'/' | b'[' | b']')
    };
    rest.is_some_and(|rest| {
        rest.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'[')
            && rest.bytes().all(is_good)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nobody(_: &str) -> Option<String> {
        None
    }

    fn settings(url: &str, endpoint: Option<&str>) -> BlobSettings {
        BlobSettings {
            blobs_url: Some(url.to_owned()),
            blobs_endpoint: endpoint.map(str::to_owned),
            blobs_access_key_id: Some("id".to_owned()),
            blobs_secret_access_key: Some("secret".into()),
            ..BlobSettings::default()
        }
    }

    #[test]
    fn a_bucket_is_named_by_its_url_and_aws_needs_a_region() {
        assert!(BlobSettings::default().bucket_with(nobody).expect("good").is_none());
        let told = settings("s3://my-bucket/a/b/", Some("http://127.0.0.1:9000/"));
        let bucket = told.bucket_with(nobody).expect("good").expect("a bucket");
        assert_eq!((bucket.name.as_str(), bucket.prefix.as_deref()), ("my-bucket", Some("a/b")));
        assert_eq!(bucket.endpoint.as_deref(), Some("http://127.0.0.1:9000"));
        assert_eq!((bucket.region.as_str(), bucket.staged_bytes), ("us-east-1", 10 << 30));
        let on_aws = settings("s3://my-bucket", None);
        assert!(matches!(on_aws.bucket_with(nobody), Err(BlobError::NoRegion)));
        let region = |name: &str| (name == "AWS_DEFAULT_REGION").then(|| "eu-west-1".to_owned());
        let bucket = on_aws.bucket_with(region).expect("good").expect("a bucket");
        assert_eq!((bucket.region.as_str(), bucket.prefix), ("eu-west-1", None));
        for (url, endpoint) in [
            ("http://my-bucket", None),
            ("s3://My-bucket", None),
            ("s3://a", None),
            ("s3://my-bucket/a//b", None),
            ("s3://my-bucket/../b", None),
            ("s3://my-bucket/a b", None),
            ("s3://my-bucket", Some("s3.example.com")),
            ("s3://my-bucket", Some("https://user:word@s3.example.com")),
            ("s3://my-bucket", Some("https://s3.example.com?x")),
            ("s3://my-bucket", Some("https://")),
        ] {
            let region = |name: &str| (name == "AWS_REGION").then(|| "us-west-2".to_owned());
            assert!(settings(url, endpoint).bucket_with(region).is_err(), "{url} {endpoint:?}");
        }
        let place = |name: &str| (name == "AWS_REGION").then(|| "evil.example/x".to_owned());
        assert!(matches!(on_aws.bucket_with(place), Err(BlobError::Region)));
    }

    #[test]
    fn a_key_is_whole_from_one_place_and_a_role_is_aws_own() {
        let vendors = |names: &'static [&'static str]| {
            move |name: &str| names.contains(&name).then(|| format!("{name}-value"))
        };
        let keyless = |endpoint| BlobSettings {
            blobs_access_key_id: None,
            blobs_secret_access_key: None,
            blobs_region: Some("us-west-2".to_owned()),
            ..settings("s3://my-bucket", endpoint)
        };
        let elsewhere = keyless(Some("https://s3.example.com"));
        let key = |settings: &BlobSettings, names| {
            settings.bucket_with(vendors(names)).map(|bucket| bucket.expect("one").credentials)
        };
        let pair = &["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];
        let theirs = key(&elsewhere, pair).expect("good");
        assert!(
            matches!(&theirs, BucketCredentials::Key { id, token: Some(_), .. } if id == "AWS_ACCESS_KEY_ID-value")
        );
        let ours = key(&settings("s3://my-bucket", Some("https://s3.example.com")), pair);
        let ours = ours.expect("good");
        assert!(matches!(&ours, BucketCredentials::Key { id, token: None, .. } if id == "id"));
        let half = BlobSettings { blobs_access_key_id: Some("id".into()), ..elsewhere.clone() };
        assert!(matches!(key(&half, pair), Err(BlobError::HalfKey)), "halves of two keys");
        assert!(matches!(key(&elsewhere, &["AWS_ACCESS_KEY_ID"]), Err(BlobError::HalfKey)));
        assert!(matches!(key(&elsewhere, &[]), Err(BlobError::NoKey)));
        let machine = key(&keyless(None), &[]).expect("good");
        assert!(matches!(machine, BucketCredentials::Role(names) if names.is_empty()));
        let role = key(&keyless(None), &["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"]);
        assert!(matches!(role.expect("good"), BucketCredentials::Role(names) if names.len() == 2));
    }

    #[test]
    fn the_secret_may_stand_in_a_file_and_is_never_shown() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        std::fs::write(&path, "sesame\n").expect("written");
        let mut told = BlobSettings {
            blobs_secret_access_key: None,
            blobs_secret_access_key_file: Some(path.clone()),
            ..settings("s3://my-bucket", Some("https://s3.example.com"))
        };
        told.check().expect("good");
        let bucket = told.bucket().expect("good").expect("a bucket");
        assert!(
            matches!(&bucket.credentials, BucketCredentials::Key { secret, .. } if secret.expose_secret() == "sesame")
        );
        assert!(!format!("{told:?} {bucket:?}").contains("sesame"));
        let mut twice = settings("s3://my-bucket", Some("https://s3.example.com"));
        twice.blobs_secret_access_key_file = Some(path);
        assert!(matches!(twice.check(), Err(BlobError::Key(KeyError::Two))));
    }
}
