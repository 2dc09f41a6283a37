//! What a volume says of itself: `DIR/meta/volume.json`, and the same in the store.

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use sluice_base::VolumeId;
use sluice_object::StoreUrl;
use std::{
    fmt,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    str::FromStr,
};

/// The newest layout of a volume's directory and store that this version knows.
pub const FORMAT_VERSION: u32 = 1;

/// A volume's identity and place.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct VolumeConfig {
    /// Layout of directory and store.
    pub format_version: u32,
    /// The volume's id: 32 hexadecimal digits.
    pub id: String,
    /// Where its objects are. A relative `file:` path is meant from the volume's directory.
    pub store: String,
    /// When fsync returns in its mounts, unless they are told otherwise.
    #[serde(default)]
    pub durability: Tier,
}

/// What a promise of durability means: when fsync returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Tier {
    /// The disks of the hosts have it: of this one, and of the server.
    #[default]
    Journal,
    /// The store has it.
    Object,
}

impl FromStr for Tier {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "journal" => Ok(Self::Journal),
            "object" => Ok(Self::Object),
            "replicated" => Err("the tier `replicated`, which keeps a copy in the journal of another host, is not built yet: choose journal or object".into()),
            other => Err(format!("there is no tier `{other}`: choose journal or object")),
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Journal => "journal",
            Self::Object => "object",
        })
    }
}

impl TryFrom<String> for Tier {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Tier> for String {
    fn from(tier: Tier) -> Self {
        tier.to_string()
    }
}

/// The volume is of a version that this program does not know: nothing may be touched.
#[derive(Debug)]
pub struct Newer(u64);

impl std::error::Error for Newer {}

impl fmt::Display for Newer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(version) = self;
        write!(
            f,
            "the volume has format {version}, this sluice knows up to {FORMAT_VERSION}; use a newer sluice. Nothing was touched"
        )
    }
}

/// The one in the directory.
pub fn config_path(dir: &Path) -> PathBuf {
    dir.join("meta/volume.json")
}

/// Writes a file so that a crash leaves the old one or the new one.
pub fn write_whole(path: &Path, text: &str) -> anyhow::Result<()> {
    let parent = path.parent().expect("it has one");
    let temporary = path.with_extension("tmp");
    fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        File::open(parent)?.sync_all()
    };
    write().with_context(|| format!("writing {}", path.display()))
}

impl VolumeConfig {
    /// For a look at a store of which only the place is known.
    pub fn nobody(store: &str) -> Self {
        Self { format_version: FORMAT_VERSION, id: String::new(), store: store.into(), durability: Tier::default() }
    }

    /// Parses the JSON; a newer version is refused before anything else is looked at.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let value: serde_json::Value = serde_json::from_str(text).context("not a volume's configuration")?;
        let version =
            value.get("format_version").and_then(serde_json::Value::as_u64).context("it has no format_version")?;
        if version > u64::from(FORMAT_VERSION) {
            return Err(Newer(version).into());
        }
        let config: Self = serde_json::from_value(value).context("not a volume's configuration")?;
        config.id()?;
        Ok(config)
    }

    /// Writes the configuration so that a crash leaves the old one or the new one.
    pub fn save(&self, dir: &Path) -> anyhow::Result<()> {
        write_whole(&config_path(dir), &self.to_json())
    }

    /// The JSON, as kept in the directory and in the store.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data") + "\n"
    }

    /// The volume's id.
    pub fn id(&self) -> anyhow::Result<VolumeId> {
        self.id.parse().with_context(|| format!("the volume id `{}`", self.id))
    }

    /// Where the objects are.
    pub fn store_url(&self, dir: &Path) -> anyhow::Result<StoreUrl> {
        Ok(match self.store.parse::<StoreUrl>()? {
            StoreUrl::File(path) => StoreUrl::File(dir.join(path)),
            StoreUrl::Memory => {
                bail!("a volume outlives its process, memory: does not: use file:DIR or s3://BUCKET/PREFIX")
            }
            s3 => s3,
        })
    }
}
