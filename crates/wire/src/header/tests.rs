use super::*;
use proptest::prelude::*;

fn header(kind: Kind) -> impl Strategy<Value = Header> {
    let id = if kind.has_id() { 1..u64::MAX } else { 0..1 };
    let asks = kind == Kind::Request;
    let answers = asks || kind == Kind::Reply;
    let method = if asks { 0..u16::MAX } else { 0..1 };
    let deadline = if asks { 0..1u32 << 24 } else { 0..1 };
    let length = 0..=kind.body_bytes_max() as u32;
    (id, method, deadline, length, any::<(u32, u32, bool)>()).prop_map(
        move |(id, method, deadline, length, (epoch, crc, unchecked))| Header {
            kind,
            method,
            length,
            id,
            epoch,
            unchecked: unchecked && answers,
            deadline_ms: (deadline > 0).then_some(deadline),
            body_crc: if length > 0 { crc } else { 0 },
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read(header in prop::sample::select(&Kind::ALL[..]).prop_flat_map(header)) {
        prop_assert_eq!(Header::parse(&header.to_bytes()), Ok(header));
    }

    #[test]
    fn what_is_read_is_what_would_be_written(mut bytes: [u8; HEADER_BYTES], kind in 0u8..14) {
        bytes[at::FORMAT] = FORMAT;
        bytes[at::KIND] = kind;
        bytes[at::LENGTH + 3] = 0;
        let crc = crc32c(&bytes[..at::HEADER_CRC]);
        bytes[at::HEADER_CRC..].copy_from_slice(&crc.to_le_bytes());
        if let Ok(header) = Header::parse(&bytes) {
            prop_assert_eq!(header.to_bytes(), bytes);
        }
    }

    #[test]
    fn no_changed_bit_goes_unnoticed(bit in 0..HEADER_BYTES * 8) {
        let mut bytes = Header { method: 3, length: 77, body_crc: 5, ..Header::new(Kind::Request, 9) }.to_bytes();
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Header::parse(&bytes).is_err());
    }
}

fn mended(change: impl FnOnce(&mut [u8; HEADER_BYTES])) -> Result<Header, FrameError> {
    let mut bytes = Header::new(Kind::Request, 1).to_bytes();
    change(&mut bytes);
    let crc = crc32c(&bytes[..at::HEADER_CRC]);
    bytes[at::HEADER_CRC..].copy_from_slice(&crc.to_le_bytes());
    Header::parse(&bytes)
}

#[test]
fn claims_are_refused_by_kind() {
    let claim = |kind: Kind, length: u32| {
        mended(|bytes| {
            bytes[at::KIND] = kind as u8;
            bytes[at::ID] = u8::from(kind.has_id());
            bytes[at::LENGTH..at::ID].copy_from_slice(&length.to_le_bytes());
        })
    };
    for kind in Kind::ALL {
        let max = kind.body_bytes_max() as u32;
        assert_eq!(claim(kind, max).map(|header| header.length), Ok(max));
        for length in [max + 1, u32::MAX] {
            assert_eq!(claim(kind, length), Err(FrameError::TooLong { kind, length }));
        }
    }
}

#[test]
fn fields_out_of_range_are_refused() {
    assert_eq!(mended(|bytes| bytes[at::FORMAT] = b'G'), Err(FrameError::NotAFrame(b'G')));
    assert_eq!(mended(|bytes| bytes[at::KIND] = 0), Err(FrameError::UnknownKind(0)));
    assert_eq!(mended(|bytes| bytes[at::KIND] = 13), Err(FrameError::UnknownKind(13)));
    assert_eq!(mended(|bytes| bytes[at::ID] = 0), Err(FrameError::BadField(Kind::Request)));
    assert_eq!(mended(|bytes| bytes[at::FLAGS] = 2), Err(FrameError::BadField(Kind::Request)));
    let reply = Kind::Reply as u8;
    for field in [at::METHOD, at::DEADLINE] {
        let parsed = mended(|bytes| (bytes[at::KIND], bytes[field]) = (reply, 1));
        assert_eq!(parsed, Err(FrameError::BadField(Kind::Reply)));
    }
}

#[test]
fn the_layout_is_that_of_the_document() {
    let header = Header {
        kind: Kind::Request,
        method: 0x0102,
        length: 0x0003_0405,
        id: 0x060708090a0b0c0d,
        epoch: 0x0e0f1011,
        unchecked: true,
        deadline_ms: Some(0x121314),
        body_crc: 0x15161718,
    };
    let expected: [u8; 28] = [
        0xf5, 4, 0x02, 0x01, 0x05, 0x04, 0x03, 0, 0x0d, 0x0c, 0x0b, 0x0a, 9, 8, 7, 6, 0x11, 0x10, 0x0f, 0x0e, 1, 0x14,
        0x13, 0x12, 0x18, 0x17, 0x16, 0x15,
    ];
    assert_eq!(header.to_bytes()[..28], expected);
    assert_eq!(header.to_bytes()[28..], crc32c(&expected).to_le_bytes());
}

#[test]
fn deadlines_round_up_and_have_an_end() {
    assert_eq!(deadline_ms(Duration::ZERO), 1);
    assert_eq!(deadline_ms(Duration::from_micros(1)), 1);
    assert_eq!(deadline_ms(Duration::from_micros(1001)), 2);
    assert_eq!(deadline_ms(Duration::from_secs(1 << 40)), 0xFF_FFFF);
}
