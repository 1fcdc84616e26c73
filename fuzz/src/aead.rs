//! Compares the AEAD of sessions with ring, message by message.

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, UnboundKey};
use strait_aead::{Cipher, KEY_LEN, LANES, Lanes, Message, NONCE_LEN, Nonce, TAG_LEN, Tags};

/// Bytes that describe a message: its nonce, and its length in two bytes.
const DESCRIPTION_LEN: usize = NONCE_LEN + 2;

/// The longest text in bytes: more than a datagram of a full packet.
const TEXT_MAX: usize = 2048;

/// Seals and opens up to sixteen messages, at once and one by one, in vector lanes if the processor has them. The results
/// equal those of ring, and sealed messages open. With one bit of a message, its tag or its nonce flipped, that message is
/// rejected and zeroed, and the others open.
///
/// The input is a key, three bytes that choose the bit, the number of messages, their descriptions, and bytes for the
/// texts.
///
/// # Panics
///
/// If one of these properties does not hold.
pub fn aead(input: &[u8]) {
    let Some(case) = Case::parse(input) else { return };

    let expected = case.sealed_by_ring();
    for lanes in [Lanes::detect(), Lanes::none()] {
        let cipher = Cipher::new(&case.key, lanes);
        case.check_sealing(&cipher, &expected);
        case.check_opening(&cipher, &expected, None);
        case.check_opening(&cipher, &expected, Some(case.flip));
    }
}

/// The bit to flip: a message and a bit, each modulo their number.
#[derive(Clone, Copy)]
struct Flip {
    message: usize,
    bit: usize,
}

/// A message that owns its text.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Owned {
    nonce: Nonce,
    text: Vec<u8>,
    tag: [u8; TAG_LEN],
}

struct Case {
    key: [u8; KEY_LEN],
    flip: Flip,
    /// Plaintexts, with zeros as tags.
    messages: Vec<Owned>,
}

impl Case {
    fn parse(input: &[u8]) -> Option<Self> {
        let (key, rest) = input.split_first_chunk()?;
        let (&[message, low, high, count], rest) = rest.split_first_chunk()?;
        let flip = Flip { message: message.into(), bit: u16::from_le_bytes([low, high]).into() };

        let count = usize::from(count) % LANES + 1;
        let (descriptions, material) = rest.split_at_checked(count * DESCRIPTION_LEN)?;
        let mut material = material.iter().copied().cycle();
        let mut messages = Vec::new();
        for description in descriptions.as_chunks::<DESCRIPTION_LEN>().0 {
            let (nonce, len) = description.split_first_chunk()?;
            let len = usize::from(u16::from_le_bytes(*len.first_chunk()?)) % (TEXT_MAX + 1);
            let mut text: Vec<u8> = material.by_ref().take(len).collect();
            text.resize(len, 0);
            messages.push(Owned { nonce: *nonce, text, tag: [0; TAG_LEN] });
        }

        Some(Self { key: *key, flip, messages })
    }

    fn sealed_by_ring(&self) -> Vec<Owned> {
        let key = UnboundKey::new(&CHACHA20_POLY1305, &self.key);
        let key = LessSafeKey::new(key.unwrap_or_else(|_| panic!("a key of {KEY_LEN} bytes")));
        let mut sealed = self.messages.clone();
        for Owned { nonce, text, tag } in &mut sealed {
            let nonce = ring::aead::Nonce::assume_unique_for_key(*nonce);
            let made = key.seal_in_place_separate_tag(nonce, Aad::empty(), text);
            tag.copy_from_slice(made.unwrap_or_else(|_| panic!("a short text")).as_ref());
        }

        sealed
    }

    fn check_sealing(&self, cipher: &Cipher, expected: &[Owned]) {
        let mut sealed = self.messages.clone();
        let tags = cipher.seal(&mut borrowed(&mut sealed));
        for (message, tag) in sealed.iter_mut().zip(tags) {
            message.tag = tag;
        }

        assert_eq!(sealed, expected);

        let mut sealed = self.messages.clone();
        for Owned { nonce, text, tag } in &mut sealed {
            *tag = cipher.seal_one(*nonce, text);
        }
        assert_eq!(sealed, expected);
    }

    /// Opens the sealed messages, after one bit was flipped if `flip` is given.
    fn check_opening(&self, cipher: &Cipher, sealed: &[Owned], flip: Option<Flip>) {
        let mut opened = sealed.to_vec();
        let flipped = flip.map(|flip| flip.message % opened.len());
        if let Some((flip, message)) = flip.zip(flipped.and_then(|number| opened.get_mut(number))) {
            message.flip(flip.bit);
        }

        let mut tags = Tags::default();
        for (tag, message) in tags.iter_mut().zip(&opened) {
            *tag = message.tag;
        }
        let mut singly = opened.clone();
        let authentic = cipher.open(&mut borrowed(&mut opened), &tags);
        for (number, Owned { nonce, text, tag }) in singly.iter_mut().enumerate() {
            let is_intact = Some(number) != flipped;
            assert_eq!(cipher.open_one(*nonce, text, *tag), is_intact, "message {number}");
        }
        assert_eq!(singly, opened);
        let each = opened.iter().zip(authentic).zip(&self.messages).enumerate();
        for (number, ((opened, is_authentic), message)) in each {
            let is_intact = Some(number) != flipped;
            assert_eq!(is_authentic, is_intact, "message {number}");
            let zeros = vec![0; message.text.len()];
            let expected = if is_intact { &message.text } else { &zeros };
            assert_eq!(&opened.text, expected, "message {number}");
        }
    }
}

impl Owned {
    /// Flips the bit `number`, modulo all bits of the text, the tag and the nonce.
    fn flip(&mut self, number: usize) {
        let len = self.text.len() + TAG_LEN + NONCE_LEN;
        let mut bytes = self.text.iter_mut().chain(&mut self.tag).chain(&mut self.nonce);
        if let Some(byte) = bytes.nth(number / 8 % len) {
            *byte ^= 1 << (number % 8);
        }
    }
}

fn borrowed(messages: &mut [Owned]) -> Vec<Message<'_>> {
    messages.iter_mut().map(|Owned { nonce, text, .. }| Message { nonce: *nonce, text }).collect()
}
