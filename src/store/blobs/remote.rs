//! Blobs in a bucket that speaks S3, through object_store.

use std::error::Error as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use object_store::aws::AmazonS3Builder;
use object_store::client::{HttpClient, HttpConnector};
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    BackoffConfig, ClientOptions, Error, GetOptions, ObjectStore, ObjectStoreExt, RetryConfig,
    WriteMultipart,
};
use secrecy::ExposeSecret;
use tokio::fs::File;
use tokio::io::AsyncReadExt;

use super::sweep::Ages;
use crate::config::{Bucket, BucketCredentials};
use crate::domain::id::ExecutionId;
use crate::net::{ClientError, ClientPlan, planned};
use crate::store::StoreError;
use crate::store::error::BucketFault;

/// A larger blob goes up in parts of this size, two at once.
const PART_BYTES: u64 = 8 << 20;
const PARTS_AT_ONCE: usize = 2;
/// The limit for a part to go up, and for each next piece of what comes down.
const STILL: Duration = Duration::from_secs(30);
/// The limit for what is short: an answer's begin, a removal.
const SHORT: Duration = Duration::from_secs(10);
/// What is tried again at once; beyond that, others decide.
const RETRIES: usize = 2;
/// The one object that is no blob; those are on shelves.
const CLOCK: &str = "last-sweep";
/// The longest cause that is looked at.
const MAX_CAUSES: usize = 16;

/// The bucket.
pub(super) struct Remote {
    objects: Arc<dyn ObjectStore>,
    /// Where it is, for people.
    place: String,
}

/// Why a blob did not go up.
pub(super) enum NotSent {
    /// The bucket's fault: the others will fare no better.
    Bucket(StoreError),
    /// The fault of what was to be sent.
    Content(std::io::Error),
}

impl Remote {
    pub(super) fn connect(bucket: &Bucket) -> Result<Self, StoreError> {
        let client = Client(bucket.ca_file.clone());
        client.make().map_err(StoreError::BucketClient)?; // the library would hide why
        let retry = RetryConfig {
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(100),
                max_backoff: Duration::from_secs(1),
                base: 2.,
            },
            max_retries: RETRIES,
            retry_timeout: SHORT,
        };
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&bucket.name)
            .with_region(&bucket.region)
            .with_retry(retry)
            .with_http_connector(client)
            // not every service that speaks S3 has the call for many at once
            .with_disable_bulk_delete(true);
        builder = match &bucket.endpoint {
            Some(endpoint) => builder.with_endpoint(endpoint),
            // a certificate of AWS's is not for a bucket with dots in its name
            None => builder.with_virtual_hosted_style_request(!bucket.name.contains('.')),
        };
        builder = match &bucket.credentials {
            BucketCredentials::Key { id, secret, token } => {
                let builder =
                    builder.with_access_key_id(id).with_secret_access_key(secret.expose_secret());
                match token {
                    Some(token) => builder.with_token(token.expose_secret()),
                    None => builder,
                }
            }
            BucketCredentials::Role(variables) => {
                let known = variables
                    .iter()
                    .filter_map(|(name, value)| Some((name.to_lowercase().parse().ok()?, value)));
                known.fold(builder, |builder, (name, value)| builder.with_config(name, value))
            }
        };
        let objects = builder.build().map_err(StoreError::Bucket)?;
        let prefix = bucket.prefix.as_deref();
        let objects: Arc<dyn ObjectStore> = match prefix {
            Some(prefix) => Arc::new(PrefixStore::new(objects, prefix)),
            None => Arc::new(objects),
        };
        let below = prefix.map(|prefix| format!("/{prefix}")).unwrap_or_default();
        let at = bucket.endpoint.as_deref().unwrap_or(&bucket.region);
        Ok(Self { objects, place: format!("s3://{}{below} at {at}", bucket.name) })
    }

    /// As if those were in a bucket.
    #[cfg(test)]
    pub(super) fn over(objects: Arc<dyn ObjectStore>) -> Self {
        Self { objects, place: "here".to_owned() }
    }

    pub(super) fn objects(&self) -> &dyn ObjectStore {
        self.objects.as_ref()
    }

    /// Sends a file whole: others see all of it, or nothing.
    pub(super) async fn send(&self, blob: &str, mut file: File, size: u64) -> Result<(), NotSent> {
        let path = Path::from(blob);
        if size <= PART_BYTES {
            let content = part(&mut file).await.map_err(NotSent::Content)?;
            if content.len() as u64 != size {
                return Err(NotSent::Content(std::io::ErrorKind::UnexpectedEof.into()));
            }
            let sent = self.objects.put(&path, content.into()).await;
            return sent.map(drop).map_err(|error| NotSent::Bucket(fault(error)));
        }
        let upload = self.objects.put_multipart(&path).await;
        let upload = upload.map_err(|error| NotSent::Bucket(fault(error)))?;
        let mut writer = WriteMultipart::new_with_chunk_size(upload, PART_BYTES as usize);
        match send_parts(&mut writer, file, size).await {
            Ok(()) => {
                let sent = writer.finish().await; // takes back the parts itself when it fails
                sent.map(drop).map_err(|error| NotSent::Bucket(fault(error)))
            }
            Err(error) => {
                // parts that stay are nobody's until a rule of the bucket removes them
                let _ = tokio::time::timeout(SHORT, writer.abort()).await;
                Err(error)
            }
        }
    }

    /// Exactly the part that is asked for, or an error.
    pub(super) async fn read(
        &self,
        blob: &str,
        first: u64,
        length: u64,
    ) -> Result<BoxStream<'static, std::io::Result<Bytes>>, StoreError> {
        let range = Some((first..first.saturating_add(length)).into());
        let options = GetOptions { range, ..GetOptions::default() };
        let found = in_time(self.objects.get_opts(&Path::from(blob), options)).await?;
        Ok(exactly(found.into_stream().map_err(std::io::Error::other).boxed(), length))
    }

    /// The whole of a blob that has so many bytes at most.
    pub(super) async fn read_whole(&self, blob: &str, most: u64) -> Result<Bytes, StoreError> {
        let found = in_time(self.objects.get(&Path::from(blob))).await?;
        let size = found.meta.size;
        if size > most {
            return Err(StoreError::BlobSize);
        }
        let mut content = BytesMut::new();
        let mut pieces = found.into_stream();
        while let Some(piece) = pieces.try_next().await.map_err(fault)? {
            if content.len() as u64 + piece.len() as u64 > size {
                return Err(StoreError::BlobSize);
            }
            content.extend_from_slice(&piece);
        }
        if content.len() as u64 == size { Ok(content.freeze()) } else { Err(StoreError::BlobSize) }
    }

    /// Removes blobs; ends at the first one that the bucket does not remove.
    pub(super) async fn delete(&self, blobs: Vec<String>) -> Result<(), StoreError> {
        let paths: Vec<_> = blobs.iter().map(|blob| Ok(Path::from(blob.as_str()))).collect();
        let mut deleted = self.objects.delete_stream(futures::stream::iter(paths).boxed());
        while let Some(deleted) = deleted.next().await {
            match deleted {
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(fault(error)),
            }
        }
        Ok(())
    }

    /// The time by the bucket's own clock, which may not be this host's: that of an object that is
    /// written now. It stays, one for all, so that no replica takes it from under another.
    pub(super) async fn ages(&self) -> Result<Ages, StoreError> {
        let path = Path::from(CLOCK);
        in_time(self.objects.put(&path, "when blobs were swept last".into())).await?;
        let found = in_time(self.objects.head(&path)).await?;
        Ok(Ages { now: found.last_modified.timestamp_micros(), opened: None })
    }

    pub(super) async fn probe(&self) -> Result<String, StoreError> {
        let path = Path::from(format!("probe-{}", ExecutionId::new()));
        in_time(self.objects.put(&path, "a probe".into())).await?;
        let read = async {
            let found = in_time(self.objects.get(&path)).await?;
            let content = found.bytes().await.map_err(fault)?;
            let mut listed = self.objects.list(Some(&Path::from("00")));
            in_time(listed.try_next()).await?;
            Ok(content)
        };
        let read: Result<Bytes, StoreError> = read.await;
        in_time(self.objects.delete(&path)).await?;
        if read? != "a probe" {
            return Err(StoreError::BlobSize);
        }
        Ok(format!("{} takes, gives, lists and removes", self.place))
    }
}

/// Makes the clients that the library uses, for roles too: ours, which follows no redirect.
#[derive(Debug)]
struct Client(Option<PathBuf>);

impl Client {
    fn make(&self) -> Result<reqwest::Client, ClientError> {
        let ca_file = self.0.as_deref();
        planned(&ClientPlan { still: Some(STILL), ca_file, ..ClientPlan::default() })
    }
}

impl HttpConnector for Client {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let made = self.make();
        let generic = |error| Error::Generic { store: "S3", source: Box::new(error) };
        made.map(HttpClient::new).map_err(generic)
    }
}

/// The next part of a file, in memory.
async fn part(file: &mut File) -> std::io::Result<Bytes> {
    let mut content = Vec::new();
    file.take(PART_BYTES).read_to_end(&mut content).await?;
    Ok(content.into())
}

/// One part in memory while another is under way.
async fn send_parts(writer: &mut WriteMultipart, mut file: File, size: u64) -> Result<(), NotSent> {
    let mut left = size;
    while left > 0 {
        let room = writer.wait_for_capacity(PARTS_AT_ONCE).await;
        room.map_err(|error| NotSent::Bucket(fault(error)))?;
        let content = part(&mut file).await.map_err(NotSent::Content)?;
        if content.len() as u64 != left.min(PART_BYTES) {
            return Err(NotSent::Content(std::io::ErrorKind::UnexpectedEof.into()));
        }
        left -= content.len() as u64;
        writer.put(content);
    }
    Ok(())
}

/// Waits for the answer to something short.
async fn in_time<T>(asked: impl Future<Output = Result<T, Error>>) -> Result<T, StoreError> {
    match tokio::time::timeout(SHORT, asked).await {
        Ok(answer) => answer.map_err(fault),
        Err(_) => Err(StoreError::BucketSlow),
    }
}

/// Passes on so many bytes; a stream that ends before or goes on after is an error.
fn exactly(
    content: BoxStream<'static, std::io::Result<Bytes>>,
    length: u64,
) -> BoxStream<'static, std::io::Result<Bytes>> {
    let counted = futures::stream::unfold(Some((content, length)), |state| async {
        let (mut content, left) = state?;
        let wrong = || std::io::Error::other(StoreError::BlobSize);
        match content.next().await {
            None if left == 0 => None,
            None => Some((Err(wrong()), None)),
            Some(Err(error)) => Some((Err(error), None)),
            Some(Ok(piece)) => match left.checked_sub(piece.len() as u64) {
                Some(left) => Some((Ok(piece), Some((content, left)))),
                None => Some((Err(wrong()), None)),
            },
        }
    });
    counted.boxed()
}

/// What went wrong, in our words where they say more than the library's. A refusal repeats what was
/// signed, which is long and nobody's business: only its code is kept.
pub(super) fn fault(error: Error) -> StoreError {
    let has = |word: &str| {
        let first: &dyn std::error::Error = &error;
        let causes = std::iter::successors(Some(first), |cause| (*cause).source());
        causes.take(MAX_CAUSES).any(|cause| cause.to_string().contains(word))
    };
    match &error {
        Error::NotFound { .. } if has("NoSuchBucket") => StoreError::NoBucket,
        Error::NotFound { .. } => StoreError::BlobMissing,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            StoreError::BucketRefused(BucketFault(code_in(&error)))
        }
        _ => StoreError::Bucket(error),
    }
}

/// <https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html>
fn code_in(error: &Error) -> Option<String> {
    let text = error.source()?.to_string();
    let code = text.split_once("<Code>")?.1.split_once("</Code>")?.0;
    let is_word = (1..=64).contains(&code.len()) && code.bytes().all(|b| b.is_ascii_alphanumeric());
    is_word.then(|| code.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(sizes: &[usize]) -> BoxStream<'static, std::io::Result<Bytes>> {
        let pieces: Vec<_> = sizes.iter().map(|size| Ok(vec![7; *size].into())).collect();
        futures::stream::iter(pieces).boxed()
    }

    #[tokio::test]
    async fn a_part_has_exactly_its_length_or_is_an_error() {
        for (sizes, length, good) in [
            (&[2, 3][..], 5, true),
            (&[], 0, true),
            (&[2, 3], 6, false),
            (&[2, 3], 4, false),
            (&[2, 0, 3], 5, true),
        ] {
            let read: Result<Vec<Bytes>, _> = exactly(pieces(sizes), length).try_collect().await;
            assert_eq!(read.is_ok(), good, "{sizes:?} {length}");
        }
    }

    #[test]
    fn faults_are_told_in_words_and_what_was_signed_is_not() {
        let refused = |body: &str| {
            let source = std::io::Error::other(body.to_owned()).into();
            fault(Error::PermissionDenied { path: "x".to_owned(), source })
        };
        let told =
            refused("403: <Error><Code>SignatureDoesNotMatch</Code><StringToSign>s</StringToSign>");
        let text = crate::domain::coded::chain(&told);
        assert_eq!(text, "the bucket refuses the key: SignatureDoesNotMatch");
        let told = refused("<Code>a <b> c</Code>").to_string();
        assert_eq!(told, "the bucket refuses the key: it says not why");
        let missing = |body: &str| {
            let source = std::io::Error::other(body.to_owned()).into();
            fault(Error::NotFound { path: "x".to_owned(), source })
        };
        assert!(matches!(missing("<Code>NoSuchKey</Code>"), StoreError::BlobMissing));
        assert!(matches!(missing("<Code>NoSuchBucket</Code>"), StoreError::NoBucket));
    }
}
