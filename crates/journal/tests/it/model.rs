//! Random histories with crashes against a plain list.

use super::*;
use proptest::prelude::*;
use sluice_base::{
    Errno,
    disk::{FaultPlan, FaultyDisk, Operation},
};

#[derive(Clone, Debug)]
enum Step {
    Append(usize),
    Sync,
    FreeBefore(u64),
    Kill,
    PowerLoss(u64),
    Note,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..900usize).prop_map(Step::Append),
        2 => (2000..9000usize).prop_map(Step::Append),
        4 => Just(Step::Sync),
        1 => (1..80u64).prop_map(Step::FreeBefore),
        1 => Just(Step::Kill),
        2 => any::<u64>().prop_map(Step::PowerLoss),
        1 => Just(Step::Note),
    ]
}

struct Model {
    disk: MemoryDisk,
    boot: u8,
    journal: Option<Journal>,
    /// Every record appended and not lost, from seq 1; freed ones included.
    records: Vec<Vec<u8>>,
    synced: u64,
    freed_before: u64,
    salt: u64,
}

impl Model {
    fn open(&mut self) -> Result<(), TestCaseError> {
        let written = self.records.len() as u64;
        let (_, first, records) =
            open(&self.disk, options(self.boot)).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let (journal, again, same) =
            open(&self.disk, options(self.boot)).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(&records, &same);
        prop_assert_eq!((first.first_seq, first.last_seq), (again.first_seq, again.last_seq));
        prop_assert_eq!(again.torn_bytes, 0, "what was dropped is gone for good");
        prop_assert!(first.last_seq.0 >= self.synced && first.last_seq.0 <= written, "{:?} of {}", first, written);
        prop_assert!(first.first_seq.0 <= self.freed_before.max(1).min(first.last_seq.0 + 1));
        for (index, (seq, bytes)) in records.iter().enumerate() {
            prop_assert_eq!(*seq, first.first_seq.0 + index as u64);
            prop_assert_eq!(bytes, &self.records[*seq as usize - 1]);
        }
        prop_assert_eq!(records.len() as u64, first.records);
        prop_assert_eq!(first.records, first.last_seq.0 + 1 - first.first_seq.0);
        self.records.truncate(first.last_seq.0 as usize);
        self.synced = first.last_seq.0;
        self.journal = Some(journal);
        Ok(())
    }

    fn apply(&mut self, step: Step) -> Result<(), TestCaseError> {
        let journal = self.journal.as_ref().expect("open");
        match step {
            Step::Append(bytes) => {
                self.salt += 1;
                let bytes = payload(self.salt, bytes);
                match journal.append(Class::Metadata, &[&bytes]) {
                    Ok(seq) => {
                        self.records.push(bytes);
                        prop_assert_eq!(seq.0, self.records.len() as u64);
                    }
                    Err(JournalError::Full { class: Class::Metadata }) => {
                        prop_assert!(journal.usage().used_bytes > 100 << 10)
                    }
                    Err(error) => return Err(TestCaseError::fail(error.to_string())),
                }
                self.synced = self.synced.max(journal.synced().0);
            }
            Step::Sync => {
                self.synced = journal.sync().unwrap().0;
                prop_assert_eq!(self.synced, self.records.len() as u64);
            }
            Step::FreeBefore(seq) => {
                // Far enough from the start to matter in a long history.
                let seq = seq.max((self.records.len() as u64).saturating_sub(seq));
                journal.free_before(Seq(seq)).unwrap();
                self.freed_before = self.freed_before.max(seq);
            }
            Step::Note => journal.note_synced().unwrap(),
            Step::Kill => {
                self.synced = self.records.len() as u64;
                self.open()?;
            }
            Step::PowerLoss(seed) => {
                self.disk = self.disk.power_loss(seed);
                self.boot = self.boot % 200 + 1;
                if seed.is_multiple_of(3) {
                    self.interrupted_open(seed);
                }
                self.open()?;
            }
        }
        Ok(())
    }

    /// A recovery that fails at one of its own writes or syncs, or gets through, and then loses power itself.
    fn interrupted_open(&mut self, seed: u64) {
        let plan = Arc::new(FaultPlan::default());
        let operation = if seed.is_multiple_of(2) { Operation::Write } else { Operation::Sync };
        plan.fail_nth(operation, seed / 6 % 4 + 1, Errno::EIO);
        drop(open_on(Arc::new(FaultyDisk::new(Arc::new(self.disk.clone()), plan)), options(self.boot)));
        self.disk = self.disk.power_loss(seed.wrapping_add(1));
        self.boot = self.boot % 200 + 1;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), ..ProptestConfig::default() })]

    /// Must survive: everything up to the last sync through any power loss, everything appended through kill -9, with the exact
    /// bytes, in order, nothing else, and the same again at the next start.
    #[test]
    fn nothing_synced_is_lost_and_nothing_is_invented(steps in prop::collection::vec(step(), 1..150)) {
        let disk = MemoryDisk::default();
        let mut model =
            Model { disk, boot: 1, journal: None, records: Vec::new(), synced: 0, freed_before: 1, salt: 0 };
        model.open()?;
        for step in steps {
            model.apply(step)?;
        }
        model.apply(Step::PowerLoss(1))?;
    }
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(150)
}
