//! The CRC-64 that ZAP hashes are made of.

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

/// Stirs `bytes` into the running value `crc` (a ZAP's salt, at first).
pub(crate) fn update(crc: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(crc, |crc, byte| (crc >> 8) ^ TABLE[((crc ^ u64::from(*byte)) & 0xff) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_the_one_of_zfs() {
        assert_eq!(TABLE[128], POLY);
        // CRC-64/XZ of the standard check string is this same polynomial, started and ended with all ones.
        assert_eq!(!update(!0, b"123456789"), 0x995D_C9BB_DF19_39FA);
    }
}
