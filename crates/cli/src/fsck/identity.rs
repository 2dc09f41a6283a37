//! Who the volume is: two copies of one text, `meta/volume.json` and the store's `sluice-volume.json`. Each mends the other.

use super::report::Item;
use crate::{
    config::VolumeConfig,
    directory::{self, Damaged},
    lock::VolumeLock,
    volume::{open_store, parse_marker},
};
use anyhow::{Context, bail};
use bytes::Bytes;
use sluice_meta::fsck::Severity;
use sluice_object::{PutMode, Store, StoreError, VOLUME_MARKER};
use std::path::Path;

/// Where `up` puts the objects when it is not told.
const STORE: &str = "file:objects";

/// Compares the copies; with `repair` a damaged one is written anew from the other. `store` says where the store is when the
/// volume's directory no longer does. Tells why the store does not answer, when it does not.
pub async fn check(
    dir: &Path,
    store: Option<&str>,
    repair: bool,
    items: &mut Vec<Item>,
) -> anyhow::Result<Option<StoreError>> {
    match directory::load(dir) {
        Ok(Some(config)) => check_store(dir, &config, repair, items).await,
        Ok(None) if !directory::has_parts(dir) => Ok(None),
        Ok(None) => restore(dir, store, repair, items, "meta/volume.json is missing".into()).await.map(|()| None),
        Err(error) if error.is::<Damaged>() => {
            restore(dir, store, repair, items, error.to_string()).await.map(|()| None)
        }
        Err(error) => Err(error),
    }
}

async fn check_store(
    dir: &Path,
    config: &VolumeConfig,
    repair: bool,
    items: &mut Vec<Item>,
) -> anyhow::Result<Option<StoreError>> {
    let store = open_store(config, dir, true)?;
    let bytes = match store.get_blob(VOLUME_MARKER).await {
        Ok(bytes) => bytes,
        Err(error) if error.is_retryable() => return Ok(Some(error)),
        // One that is missing or cannot be read is for `ask_store` of every start: it may be the wrong bucket.
        Err(_) => return Ok(None),
    };
    match parse_marker(&bytes, &store, dir) {
        Err(error) if error.is::<Damaged>() => {
            if repair {
                let _lock = VolumeLock::take(dir)?;
                let put = store.put_blob(VOLUME_MARKER, Bytes::from(config.to_json()), PutMode::Overwrite).await;
                put.with_context(|| format!("writing to {}", store.place()))?;
            }
            items.push(item(error.to_string(), repair));
            Ok(None)
        }
        other => other.map(|_| None),
    }
}

async fn restore(
    dir: &Path,
    store: Option<&str>,
    repair: bool,
    items: &mut Vec<Item>,
    what: String,
) -> anyhow::Result<()> {
    let copy = copy_in_store(dir, store.unwrap_or(STORE)).await;
    let copy = copy.with_context(|| format!("{what}; --store tells where the store with its copy is"))?;
    if repair {
        let _lock = VolumeLock::take(dir)?;
        copy.save(dir)?;
    }
    items.push(item(what, repair));
    Ok(())
}

async fn copy_in_store(dir: &Path, store: &str) -> anyhow::Result<VolumeConfig> {
    let nobody = VolumeConfig::nobody(store);
    if let sluice_object::StoreUrl::File(path) = nobody.store_url(dir)?
        && !path.is_dir()
    {
        bail!("{} is no directory", path.display());
    }
    let store: Store = open_store(&nobody, dir, true)?;
    let bytes = store.get_blob(VOLUME_MARKER).await.with_context(|| format!("the store {}", store.place()))?;
    parse_marker(&bytes, &store, dir)
}

fn item(text: String, mended: bool) -> Item {
    Item { repairable: true, mended, ..Item::lasting("configuration", Severity::Serious, text) }
}
