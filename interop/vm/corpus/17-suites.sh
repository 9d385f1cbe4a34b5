about "every encryption suite with every format of the key: raw streams (-w), full and incremental, with the keys under keys/"
mkpool $SRC; mkpool $DST
mkdir -p "$OUT/keys"
one() {  # ENCRYPTION KEYFORMAT
  local enc=$1 kf=$2 n=${1#aes-}-$2 o=()
  local D=$SRC/$n k=/tmp/$n.key
  case $kf in
    raw) head -c 32 /dev/urandom > $k ;;
    hex) head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' > $k ;;
    passphrase) printf '%s' "$(v 'correct horse battery' 'pass-phrase \xc3\xbc 12')" > $k; o=(-o pbkdf2iters=$(v 100000 123456)) ;;
  esac
  cp $k "$OUT/keys/$n.key"
  zfs create -o encryption=$enc -o keyformat=$kf -o keylocation=file://$k "${o[@]}" -o compression=lz4 -o xattr=sa $D || oops "create $D"
  py $n-0 /mnt/$D <<'PY'
top = sys.argv[1]
tree(top, 3, 6000); w(top + '/text', text(20000)); w(top + '/hole', b'x', 300000)
PY
  snap $D@a
  py $n-1 /mnt/$D <<'PY'
top = sys.argv[1]
w(top + '/text', rand(600), 9000); append(top + '/hole', text(2000))
PY
  snap $D@b
  S $n-full.zstream zfs send -w $D@a
  S $n-inc.zstream zfs send -w -i @a $D@b
  printf '%s\t%s\t%s\tkeys/%s.key\t%s\t%s\n' $n $enc $kf $n "$(command zfs get -Hpo value pbkdf2iters $D)" "$(command zfs get -Hpo value pbkdf2salt $D)" >> "$OUT/keys.tsv"
  chain $n $n-full.zstream $n-inc.zstream key=$k
}
for enc in aes-128-ccm aes-192-ccm aes-256-ccm aes-128-gcm aes-192-gcm aes-256-gcm; do
  for kf in raw hex passphrase; do one $enc $kf; done
done
note "keys.tsv: name, encryption, keyformat, key file, pbkdf2iters, pbkdf2salt (0 and 0 unless a passphrase)"
