//! S3 and what speaks like it, through `object_store`.
//!
//! Its retries are off: [`crate::Store`] has the one loop. Over https payloads go unsigned, as TLS authenticates them; over
//! http each is signed, so that the server finds damage on the way.

use super::{Backend, ListEntry, PutMode, check_key, s3_error};
use crate::{
    StoreError,
    credentials::{AwsSettings, Source},
    url::{S3Url, check_endpoint, check_http},
};
use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream::BoxStream};
use object_store::{
    BackoffConfig, ClientOptions, GetOptions, ObjectStore, ObjectStoreExt, PutPayload, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut},
    path::Path,
};
use sluice_base::{Pages, Timestamp};
use std::{ops::Range, sync::Arc, time::Duration};

/// A prefix of a bucket.
pub struct S3Backend {
    client: AmazonS3,
    /// Empty, or ends with a slash.
    prefix: String,
    conditional_put: bool,
    place: s3_error::Place,
    pages: Arc<Pages>,
}

impl S3Backend {
    /// Prepares to use the bucket; contacts nobody yet.
    pub fn open(url: &S3Url, aws: &AwsSettings, connect_timeout: Duration) -> Result<Self, StoreError> {
        let found = aws.find(url.imds)?;
        let endpoint = match (&url.endpoint, &found.endpoint) {
            (Some(endpoint), _) => Some(endpoint.clone()),
            (None, Some(text)) => {
                let checked =
                    check_endpoint(text).map_err(|error| StoreError::invalid(format!("AWS_ENDPOINT_URL: {error}")))?;
                Some(checked)
            }
            (None, None) => None,
        };
        check_http(endpoint.as_deref(), url.allow_http).map_err(|error| StoreError::invalid(error.to_string()))?;
        let region = url.region.clone().or(found.region).unwrap_or_else(|| "us-east-1".into());
        let clear = endpoint.as_ref().is_some_and(|endpoint| endpoint.starts_with("http:"));
        let once = RetryConfig { backoff: BackoffConfig::default(), max_retries: 0, retry_timeout: Duration::ZERO };
        // Time-outs of whole requests are the caller's: only it knows how long a body is.
        let options = ClientOptions::new()
            .with_timeout_disabled()
            .with_connect_timeout(connect_timeout)
            .with_http1_only()
            .with_allow_http(clear)
            .with_user_agent(object_store::HeaderValue::from_static(concat!("sluicefs/", env!("CARGO_PKG_VERSION"))));
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&url.bucket)
            .with_region(&region)
            .with_client_options(options)
            .with_retry(once)
            .with_unsigned_payload(!clear)
            .with_disable_bulk_delete(true)
            .with_conditional_put(S3ConditionalPut::ETagMatch);
        builder = with_source(builder, &found.source, aws);
        let path_style = url.path_style.unwrap_or(endpoint.is_some() || url.bucket.contains('.'));
        builder = builder.with_virtual_hosted_style_request(!path_style);
        if let Some(endpoint) = &endpoint {
            builder =
                builder.with_endpoint(if path_style { endpoint.clone() } else { with_bucket(endpoint, &url.bucket) });
        }
        let place = s3_error::Place {
            bucket: url.bucket.clone(),
            service: endpoint.unwrap_or_else(|| format!("AWS S3 in {region}")),
        };
        let client = builder.build().map_err(|error| place.error("", error))?;
        let prefix = if url.prefix.is_empty() { String::new() } else { format!("{}/", url.prefix) };
        Ok(Self { client, prefix, conditional_put: url.conditional_put, place, pages: Pages::new(0) })
    }

    /// Answers go into buffers of `pages`.
    pub fn with_pages(self, pages: Arc<Pages>) -> Self {
        Self { pages, ..self }
    }

    /// The pieces of an answer lie in the buffer of its connection, which is larger than they are: kept, they would keep it.
    async fn read(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        let failed = |error| self.place.error(key, error);
        let wanted = (range.end - range.start) as usize;
        let options = GetOptions::new().with_range(Some(range));
        let mut pieces = match self.client.get_opts(&self.path(key)?, options).await {
            Err(error) if s3_error::is_past_the_end(&error) => return Ok(Bytes::new()),
            found => found.map_err(failed)?.into_stream(),
        };
        let (mut page, mut len) = (self.pages.take(wanted), 0);
        while let Some(piece) = pieces.next().await.transpose().map_err(failed)? {
            let place = page.as_mut().get_mut(len..len + piece.len());
            place
                .ok_or_else(|| StoreError::unavailable(format!("{key}: more bytes than asked for")))?
                .copy_from_slice(&piece);
            len += piece.len();
        }
        Ok(Bytes::from_owner(page).slice(..len))
    }

    fn path(&self, key: &str) -> Result<Path, StoreError> {
        check_key(key)?;
        Path::parse(format!("{}{key}", self.prefix)).map_err(|error| StoreError::invalid(error.to_string()))
    }

    async fn put_checked(&self, key: &str, body: Vec<Bytes>, mode: PutMode) -> Result<(), StoreError> {
        let path = self.path(key)?;
        let mode = match mode {
            PutMode::Create if self.conditional_put => object_store::PutMode::Create,
            PutMode::Create => {
                match self.head(key).await {
                    Err(StoreError::NotFound { .. }) => {}
                    found => return Err(found.err().unwrap_or_else(|| StoreError::Exists { key: key.into() })),
                }
                object_store::PutMode::Overwrite
            }
            PutMode::Overwrite => object_store::PutMode::Overwrite,
        };
        let done = self.client.put_opts(&path, PutPayload::from_iter(body), mode.into()).await;
        done.map(drop).map_err(|error| self.place.error(key, error))
    }
}

fn with_source(builder: AmazonS3Builder, source: &Source, aws: &AwsSettings) -> AmazonS3Builder {
    let with = |builder: AmazonS3Builder, name: &str, key| match aws.get(name) {
        Some(value) => builder.with_config(key, value),
        None => builder,
    };
    match source {
        Source::Keys(keys) => {
            let builder =
                builder.with_access_key_id(&keys.access_key_id).with_secret_access_key(&keys.secret_access_key);
            keys.session_token.iter().fold(builder, |builder, token| builder.with_token(token))
        }
        Source::WebIdentity => {
            let builder = with(builder, "AWS_WEB_IDENTITY_TOKEN_FILE", AmazonS3ConfigKey::WebIdentityTokenFile);
            let builder = with(builder, "AWS_ROLE_ARN", AmazonS3ConfigKey::RoleArn);
            let builder = with(builder, "AWS_ROLE_SESSION_NAME", AmazonS3ConfigKey::RoleSessionName);
            with(builder, "AWS_ENDPOINT_URL_STS", AmazonS3ConfigKey::StsEndpoint)
        }
        Source::Container => {
            let relative = AmazonS3ConfigKey::ContainerCredentialsRelativeUri;
            let builder = with(builder, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", relative);
            let full = AmazonS3ConfigKey::ContainerCredentialsFullUri;
            let builder = with(builder, "AWS_CONTAINER_CREDENTIALS_FULL_URI", full);
            let token = AmazonS3ConfigKey::ContainerAuthorizationTokenFile;
            with(builder, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token)
        }
        Source::Instance => builder,
    }
}

/// `https://host` with the bucket in front of the host.
fn with_bucket(endpoint: &str, bucket: &str) -> String {
    endpoint.replacen("://", &format!("://{bucket}."), 1)
}

impl Backend for S3Backend {
    fn has_connections(&self) -> bool {
        true
    }

    fn put<'a>(&'a self, key: &'a str, body: Vec<Bytes>, mode: PutMode) -> BoxFuture<'a, Result<(), StoreError>> {
        self.put_checked(key, body, mode).boxed()
    }

    fn get_range<'a>(&'a self, key: &'a str, range: Range<u64>) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        self.read(key, range).boxed()
    }

    fn get<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<Bytes, StoreError>> {
        async move {
            let found = self.client.get(&self.path(key)?).await.map_err(|error| self.place.error(key, error))?;
            found.bytes().await.map_err(|error| self.place.error(key, error))
        }
        .boxed()
    }

    fn head<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<u64, StoreError>> {
        async move {
            let found = self.client.head(&self.path(key)?).await;
            found.map(|meta| meta.size).map_err(|error| self.place.error(key, error))
        }
        .boxed()
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Result<(), StoreError>> {
        async move {
            match self.client.delete(&self.path(key)?).await.map_err(|error| self.place.error(key, error)) {
                Err(StoreError::NotFound { .. }) => Ok(()),
                done => done,
            }
        }
        .boxed()
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxStream<'a, Result<ListEntry, StoreError>> {
        let whole = format!("{}{prefix}", self.prefix);
        let path = Path::from(whole.trim_end_matches('/'));
        let found = self.client.list((!path.as_ref().is_empty()).then_some(&path));
        found
            .map(move |entry| {
                let meta = entry.map_err(|error| self.place.error(prefix, error))?;
                let key = meta.location.as_ref();
                let key = key.strip_prefix(&self.prefix).unwrap_or(key).to_string();
                let (secs, nanos) = (meta.last_modified.timestamp(), meta.last_modified.timestamp_subsec_nanos());
                Ok(ListEntry { key, bytes: meta.size, modified: Timestamp { secs, nanos: nanos.min(999_999_999) } })
            })
            .boxed()
    }
}
