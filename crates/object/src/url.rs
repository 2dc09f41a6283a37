//! Store URLs: `file:DIR`, `s3://BUCKET/PREFIX?option=value&...`, `memory:`.
//!
//! A URL never holds a secret: it is stored in volume settings, shown by `status` and logged. Credentials come from
//! [`crate::AwsSettings`]. Error texts do not repeat the URL either, as somebody may have put a key in it.

use crate::backend::check_key;
use std::{fmt, path::PathBuf, str::FromStr};

/// Where a volume's objects are kept. Parsing what it displays gives it back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreUrl {
    /// A directory.
    File(PathBuf),
    /// A prefix of a bucket.
    S3(S3Url),
    /// A new, empty store in this process: for tests.
    Memory,
}

/// A prefix of a bucket and how to reach it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct S3Url {
    /// Bucket name.
    pub bucket: String,
    /// Key prefix without slashes at its ends; may be empty.
    pub prefix: String,
    /// `endpoint=`: http:// or https:// URL of the service; AWS when there is none.
    pub endpoint: Option<String>,
    /// `region=`.
    pub region: Option<String>,
    /// `path_style=`: bucket in the path (true) or in the host name (false). By default in the path for an endpoint of one's
    /// own and for bucket names with dots, which no wildcard certificate covers.
    pub path_style: Option<bool>,
    /// `allow_http=false` refuses an http:// endpoint, wherever it comes from.
    pub allow_http: Option<bool>,
    /// `imds=true` asks the instance metadata service for credentials when there are no others.
    pub imds: bool,
    /// `conditional_put=false` for stores that do not know `If-None-Match: *`: looks first, then puts.
    pub conditional_put: bool,
}

/// The text is no store URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("store URL: {what}; {EXAMPLES}")]
pub struct InvalidStoreUrl {
    what: String,
}

const EXAMPLES: &str = "right ones are file:/srv/volume, s3://bucket/prefix?region=eu-central-1 and \
     s3://bucket/prefix?endpoint=http://127.0.0.1:9000";

fn invalid<T>(what: impl Into<String>) -> Result<T, InvalidStoreUrl> {
    Err(InvalidStoreUrl { what: what.into() })
}

impl FromStr for StoreUrl {
    type Err = InvalidStoreUrl;

    fn from_str(text: &str) -> Result<Self, InvalidStoreUrl> {
        let Some((scheme, rest)) = text.split_once(':') else {
            return invalid("it does not start with file:, s3: or memory:");
        };
        match scheme {
            "file" => parse_file(rest),
            "s3" => parse_s3(rest).map(Self::S3),
            "memory" if rest.is_empty() => Ok(Self::Memory),
            "memory" => invalid("nothing may follow memory:"),
            _ => invalid("it does not start with file:, s3: or memory:"),
        }
    }
}

fn parse_file(rest: &str) -> Result<StoreUrl, InvalidStoreUrl> {
    let path = match rest.strip_prefix("//") {
        Some(path) if path.starts_with('/') => path,
        Some(_) => return invalid("after file:// comes a third slash; a host name is not possible"),
        None => rest,
    };
    if path.is_empty() || path.contains('\0') {
        return invalid("the directory after file: is missing or holds a NUL");
    }
    Ok(StoreUrl::File(path.into()))
}

fn parse_s3(rest: &str) -> Result<S3Url, InvalidStoreUrl> {
    let Some(rest) = rest.strip_prefix("//") else { return invalid("after s3: come two slashes and the bucket") };
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    if place.contains('@') {
        return invalid("credentials do not belong into it; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY");
    }
    let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
    if !(3..=63).contains(&bucket.len()) || check_key(bucket).is_err() {
        return invalid("a bucket name has 3 to 63 letters, digits, '.', '_' or '-'");
    }
    let prefix = prefix.trim_matches('/');
    if !prefix.is_empty() && (check_key(prefix).is_err() || prefix.len() > 512) {
        return invalid("a prefix has at most 512 letters, digits, '.', '_', '-', in parts joined by '/'");
    }
    let mut url = S3Url {
        bucket: bucket.into(),
        prefix: prefix.into(),
        endpoint: None,
        region: None,
        path_style: None,
        allow_http: None,
        imds: false,
        conditional_put: true,
    };
    for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
        url.set(&name, &value)?;
    }
    check_http(url.endpoint.as_deref(), url.allow_http)?;
    Ok(url)
}

impl S3Url {
    fn set(&mut self, name: &str, value: &str) -> Result<(), InvalidStoreUrl> {
        let flag = || match value {
            "true" | "1" => Ok(true),
            "false" | "0" => Ok(false),
            _ => invalid(format!("{name}= takes true or false")),
        };
        match name {
            "endpoint" => self.endpoint = Some(check_endpoint(value)?),
            "region" if !value.is_empty() && check_key(value).is_ok() => self.region = Some(value.into()),
            "region" => return invalid("region= takes a name like eu-central-1"),
            "path_style" => self.path_style = Some(flag()?),
            "allow_http" => self.allow_http = Some(flag()?),
            "imds" => self.imds = flag()?,
            "conditional_put" => self.conditional_put = flag()?,
            _ => {
                // Cut short, and never with its value: this may be a secret under a name that somebody guessed.
                let name: String = name.chars().take(24).collect();
                return invalid(format!(
                    "there is no option {name:?}, only endpoint, region, path_style, allow_http, imds, conditional_put"
                ));
            }
        }
        Ok(())
    }
}

/// An endpoint without its trailing slashes, if it is one.
pub(crate) fn check_endpoint(text: &str) -> Result<String, InvalidStoreUrl> {
    let Ok(parsed) = url::Url::parse(text) else { return invalid("endpoint= takes a URL like http://127.0.0.1:9000") };
    if !matches!(parsed.scheme(), "http" | "https") || parsed.host_str().is_none() {
        return invalid("the endpoint starts with http:// or https:// and a host");
    }
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return invalid("the endpoint holds credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead");
    }
    if parsed.query().is_some() || parsed.fragment().is_some() {
        return invalid("the endpoint has no query and no fragment");
    }
    Ok(parsed.as_str().trim_end_matches('/').into())
}

/// An http:// endpoint is the operator's word that clear text is fine, unless `allow_http=false` takes it back.
pub(crate) fn check_http(endpoint: Option<&str>, allow_http: Option<bool>) -> Result<(), InvalidStoreUrl> {
    if allow_http == Some(false) && endpoint.is_some_and(|endpoint| endpoint.starts_with("http:")) {
        return invalid("allow_http=false refuses the http:// endpoint; use https://");
    }
    Ok(())
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file:{}", path.display()),
            Self::S3(url) => url.fmt(f),
            Self::Memory => f.write_str("memory:"),
        }
    }
}

impl fmt::Display for S3Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s3://{}", self.bucket)?;
        if !self.prefix.is_empty() {
            write!(f, "/{}", self.prefix)?;
        }
        let options = [
            ("endpoint", self.endpoint.clone()),
            ("region", self.region.clone()),
            ("path_style", self.path_style.map(|flag| flag.to_string())),
            ("allow_http", self.allow_http.map(|flag| flag.to_string())),
            ("imds", self.imds.then(|| "true".into())),
            ("conditional_put", (!self.conditional_put).then(|| "false".into())),
        ];
        let set = options.into_iter().filter_map(|(name, value)| Some((name, value?)));
        for (n, (name, value)) in set.enumerate() {
            // Only what would end the value early is escaped, so that the text stays the one that people type.
            let value = value.replace('%', "%25").replace('&', "%26").replace('+', "%2B").replace('#', "%23");
            write!(f, "{}{name}={value}", if n == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_ones_come_back() {
        for text in [
            "file:/srv/volume",
            "file:relative dir",
            "memory:",
            "s3://bucket",
            "s3://bucket/a/b?region=eu-central-1",
            "s3://bucket/p?endpoint=http://127.0.0.1:9000&region=us-east-1&path_style=true&allow_http=true",
            "s3://bucket?imds=true&conditional_put=false",
        ] {
            assert_eq!(text.parse::<StoreUrl>().unwrap().to_string(), text);
        }
        assert_eq!("file:///srv/v".parse(), Ok(StoreUrl::File("/srv/v".into())));
        assert_eq!(
            "s3://bucket/p/?endpoint=https%3A%2F%2Fhost%2F".parse::<StoreUrl>().unwrap().to_string(),
            "s3://bucket/p?endpoint=https://host"
        );
    }

    #[test]
    fn bad_ones_say_why_and_show_a_right_one() {
        for (text, why) in [
            ("", "does not start with"),
            ("/srv/volume", "does not start with"),
            ("gs://bucket", "does not start with"),
            ("file:", "directory"),
            ("file://host/dir", "host name"),
            ("memory:x", "nothing may follow"),
            ("s3:bucket", "two slashes"),
            ("s3://", "bucket name"),
            ("s3://b/p", "bucket name"),
            ("s3://bucket/a//b", "prefix"),
            ("s3://bucket/../b", "prefix"),
            ("s3://bucket?path_style=maybe", "true or false"),
            ("s3://bucket?endpoint=localhost:9000", "http"),
            ("s3://bucket?endpoint=ftp://host", "http"),
            ("s3://bucket?endpoint=http://host&allow_http=false", "allow_http=false"),
            ("s3://bucket?region=", "region="),
            ("s3://bucket?regoin=x", "\"regoin\""),
        ] {
            let error = text.parse::<StoreUrl>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
            assert!(error.contains("s3://bucket/prefix"), "{text}: {error}");
        }
    }

    #[test]
    fn secrets_are_refused_and_not_repeated() {
        for text in [
            "s3://AKIAKEY:hunter2@bucket/p",
            "s3://bucket?secret_access_key=hunter2",
            "s3://bucket?endpoint=http://user:hunter2@host",
            "hunter2",
        ] {
            let error = text.parse::<StoreUrl>().unwrap_err();
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn what_parses_comes_back(text in "(file:|s3://buck|memory:)?[a-z0-9/.?&=%:+ #@_-]{0,40}", endpoint in "[a-z0-9/:%+#&]{0,12}") {
            for text in [text.clone(), format!("s3://bucket?endpoint=http://{endpoint}"), format!("{text}?region={endpoint}")] {
                if let Ok(url) = text.parse::<StoreUrl>() {
                    proptest::prop_assert_eq!(url.to_string().parse::<StoreUrl>(), Ok(url));
                }
            }
        }
    }
}
