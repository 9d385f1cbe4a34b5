# case: needs ZFS 2.2
about "packages and single streams that passed through zstream redup, recompress and decompress"
mkpool $SRC; mkpool $DST
D=$SRC/$(v data stuff)
zfs create -o compression=lz4 $D; zfs create $D/below
py zs-0 /mnt/$D <<'PY'
top = sys.argv[1]
tree(top, 3, 6000); w(top + '/text', text(30000)); w(top + '/hole', b'x', 300000); w(top + '/below/more', text(9000))
PY
snapr $D@a
py zs-1 /mnt/$D <<'PY'
top = sys.argv[1]
w(top + '/text', text(6000), 9000); append(top + '/hole', text(20000)); w(top + '/below/more', rand(300), 100)
PY
snapr $D@b
# P FILE TOOL-AND-ARGUMENTS SEND...: a stream, as a file and passed through the tool
P() {
  local f=$1 tool=$2; shift 2
  command "$@" > /tmp/plain.zstream || oops "$*"
  case $tool in
    *redup) echo "$(quote "$@") > plain; $tool plain > $f" >> "$CASELOG"; command $tool /tmp/plain.zstream > "$OUT/$f" || oops "$tool" ;;
    *) echo "$(quote "$@") | $tool > $f" >> "$CASELOG"; command $tool < /tmp/plain.zstream > "$OUT/$f" || oops "$tool" ;;
  esac
  command zstream dump -v "$OUT/$f" 2> /dev/null | gzip -9n > "$OUT/$f.dump.gz"
}
object=$(stat -c %i /mnt/$D/text)
for w in redup recompress-zstd recompress-off decompress; do
  case $w in
    redup) tool="zstream redup" ;;
    recompress-*) tool="zstream recompress ${w#*-}" ;;
    decompress) tool="zstream decompress $object,0,lz4" ;;
  esac
  P $w-R.zstream "$tool" zfs send -R -c $D@b
  P $w-full.zstream "$tool" zfs send -c $D@a
  P $w-pkg.zstream "$tool" zfs send -c -I @a $D@b
  chain $w-tree -F $w-R.zstream
  chain $w $w-full.zstream $w-pkg.zstream
done
