use super::*;
use proptest::prelude::*;

fn disk_with_dir() -> (MemoryDisk, PathBuf) {
    let disk = MemoryDisk::default();
    disk.create_dir_all(Path::new("/d")).unwrap();
    (disk, PathBuf::from("/d/f"))
}

fn bytes_of(file: &dyn DiskFile) -> Vec<u8> {
    let mut bytes = vec![0; file.size().unwrap() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn synced_data_survives_and_unsynced_data_is_kept_dropped_or_torn() {
    let (disk, path) = disk_with_dir();
    let file = disk.open(&path).unwrap();
    file.write_all_at(&[1; 2048], 0).unwrap();
    file.sync_data().unwrap();
    disk.sync_dir(Path::new("/d")).unwrap();
    file.write_all_at(&[2; 2048], 0).unwrap();
    let (mut kept, mut dropped, mut torn) = (0, 0, 0);
    for seed in 0..100 {
        let found = bytes_of(&*disk.power_loss(seed).open(&path).unwrap());
        assert!(found.chunks(512).all(|sector| sector.iter().all(|&byte| byte == sector[0] && byte != 0)));
        match found.iter().filter(|&&byte| byte == 2).count() {
            2048 => kept += 1,
            0 => dropped += 1,
            _ => torn += 1,
        }
    }
    assert!(kept > 5 && dropped > 5 && torn > 5, "{kept} {dropped} {torn}");
    assert_eq!(bytes_of(&*file), [2; 2048], "the disk itself goes on");
}

#[test]
fn names_become_durable_with_their_directory() {
    let (disk, path) = disk_with_dir();
    let file = disk.open(&path).unwrap();
    file.write_all_at(b"x", 0).unwrap();
    file.sync_data().unwrap();
    let lost = (0..50).filter(|&seed| disk.power_loss(seed).list(Path::new("/d")).unwrap().is_empty()).count();
    assert!((5..45).contains(&lost), "{lost}");
    disk.sync_dir(Path::new("/d")).unwrap();
    disk.rename(&path, Path::new("/d/g")).unwrap();
    for seed in 0..50 {
        let after = disk.power_loss(seed);
        let names = after.list(Path::new("/d")).unwrap();
        assert!(names == [PathBuf::from("/d/f")] || names == [PathBuf::from("/d/g")], "{names:?}");
        assert_eq!(bytes_of(&*after.open(&names[0]).unwrap()), b"x");
    }
    disk.remove(Path::new("/d/g")).unwrap();
    disk.sync_dir(Path::new("/d")).unwrap();
    assert!((0..50).all(|seed| disk.power_loss(seed).list(Path::new("/d")).unwrap().is_empty()));
}

#[test]
fn same_seed_same_disk() {
    let (disk, path) = disk_with_dir();
    let file = disk.open(&path).unwrap();
    disk.sync_dir(Path::new("/d")).unwrap();
    (0..20u8).for_each(|i| file.write_all_at(&[i; 700], u64::from(i) * 700).unwrap());
    let (one, two) = (disk.power_loss(7), disk.power_loss(7));
    assert_eq!(bytes_of(&*one.open(&path).unwrap()), bytes_of(&*two.open(&path).unwrap()));
}

#[test]
fn a_full_disk_refuses_and_allocated_room_stays_usable() {
    let (disk, path) = disk_with_dir();
    disk.set_capacity(4 * PAGE_BYTES);
    let file = disk.open(&path).unwrap();
    file.allocate(0, 3 * PAGE_BYTES).unwrap();
    let other = disk.open(Path::new("/d/other")).unwrap();
    other.write_all_at(&[1; 10], 0).unwrap();
    let full = other.write_all_at(&[1; 10], PAGE_BYTES).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    file.write_all_at(&[9; 3 * PAGE_BYTES as usize], 0).unwrap();
    assert_eq!(disk.space(&path).unwrap().available_bytes, 0);
    file.punch(PAGE_BYTES, PAGE_BYTES).unwrap();
    other.write_all_at(&[1; 10], PAGE_BYTES).unwrap();
    assert_eq!(file.allocate(0, 3 * PAGE_BYTES).unwrap_err().kind(), io::ErrorKind::StorageFull);
    disk.remove(Path::new("/d/other")).unwrap();
    assert_eq!(disk.used_bytes(), 2 * PAGE_BYTES);
    assert_eq!(disk.power_loss(1).used_bytes() % PAGE_BYTES, 0);
}

#[test]
fn a_flipped_bit_stays_flipped() {
    let (disk, path) = disk_with_dir();
    let file = disk.open(&path).unwrap();
    disk.sync_dir(Path::new("/d")).unwrap();
    file.write_all_at(&[0; 16], 0).unwrap();
    file.sync_data().unwrap();
    assert!(disk.flip_bit(&path, 9));
    assert!(!disk.flip_bit(&path, 16));
    assert_eq!(bytes_of(&*file)[9], 2);
    assert_eq!(bytes_of(&*disk.power_loss(0).open(&path).unwrap())[9], 2);
}

proptest! {
    /// Against a plain vector.
    #[test]
    fn contents_follow_the_model(steps in prop::collection::vec((0..4u8, 0..20_000u64, 0..9_000u64, any::<u8>()), 1..40)) {
        let (disk, path) = disk_with_dir();
        let file = disk.open(&path).unwrap();
        let mut model: Vec<u8> = Vec::new();
        for (kind, offset, bytes, fill) in steps {
            let (start, end) = (offset as usize, (offset + bytes) as usize);
            match kind {
                0 => {
                    file.write_all_at(&vec![fill; bytes as usize], offset).unwrap();
                    model.resize(model.len().max(end), 0);
                    model[start..end].fill(fill);
                }
                1 => { file.set_size(offset).unwrap(); model.resize(start, 0); }
                2 => { file.allocate(offset, bytes).unwrap(); model.resize(model.len().max(end), 0); }
                _ => {
                    file.punch(offset, bytes).unwrap();
                    let length = model.len();
                    model[start.min(length)..end.min(length)].fill(0);
                }
            }
            prop_assert_eq!(&bytes_of(&*file), &model);
        }
        let used = disk.used_bytes();
        file.sync_data().unwrap();
        disk.sync_dir(Path::new("/d")).unwrap();
        let after = disk.power_loss(3);
        prop_assert_eq!(bytes_of(&*after.open(&path).unwrap()), model);
        prop_assert_eq!(after.used_bytes(), used);
    }
}
