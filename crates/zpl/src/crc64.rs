//! The CRC-64 from which ZAP hashes are computed.

/// `ZFS_CRC64_POLY` of `include/sys/spa.h`: ECMA-182, reflected.
const POLY: u64 = 0xC96C_5795_D787_0F42;

const TABLE: [u64; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        let mut value = i as u64;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ POLY } else { value >> 1 };
            bit += 1;
        }
        table[i] = value;
        i += 1;
    }
    table
};

/// Lookup tables by distance of a byte to the end of a group of eight, so that eight bytes are processed at once.
const TABLES: [[u64; 256]; 8] = {
    let mut tables = [TABLE; 8];
    let mut behind = 1;
    while behind < 8 {
        let mut i = 0;
        while i < 256 {
            let before = tables[behind - 1][i];
            tables[behind][i] = (before >> 8) ^ TABLE[(before & 0xff) as usize];
            i += 1;
        }
        behind += 1;
    }
    tables
};

/// Continues the CRC `crc` over `bytes`. A ZAP's hash starts with its salt.
pub(crate) fn update(crc: u64, bytes: &[u8]) -> u64 {
    let (eights, rest) = bytes.as_chunks::<8>();
    let crc = eights.iter().fold(crc, |crc, eight| {
        let mixed = (crc ^ u64::from_le_bytes(*eight)).to_le_bytes();
        mixed.iter().enumerate().fold(0, |crc, (index, byte)| crc ^ TABLES[7 - index][usize::from(*byte)])
    });
    rest.iter().fold(crc, |crc, byte| (crc >> 8) ^ TABLE[((crc ^ u64::from(*byte)) & 0xff) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_the_one_of_zfs() {
        assert_eq!(TABLE[128], POLY);
        // CRC-64/XZ has the same polynomial. It starts with all ones and inverts the result.
        assert_eq!(!update(!0, b"123456789"), 0x995D_C9BB_DF19_39FA);
    }

    #[test]
    fn eight_at_once_are_as_one_by_one() {
        let bytes: Vec<u8> = (0..100u8).map(|n| n.wrapping_mul(37)).collect();
        for len in 0..bytes.len() {
            let one_by_one = bytes[..len].iter().fold(7, |crc, byte| update(crc, &[*byte]));
            assert_eq!(update(7, &bytes[..len]), one_by_one, "{len} bytes");
        }
    }
}
