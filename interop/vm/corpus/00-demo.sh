about "a home directory on Monday and on Tuesday: the pair of streams of testdata/demo"
mkpool $SRC; mkpool $DST -O acltype=posixacl
D=$SRC/home
zfs create -o compression=lz4 -o xattr=sa -o acltype=posixacl $D
py monday /mnt/$D <<'PY'
top = sys.argv[1]
for d in ('documents/letters', 'photos/2026', 'projects/garden'): os.makedirs(top + '/' + d)
w(top + '/documents/letters/to-anna.txt', b'Dear Anna,\n\nthe first snow has come. The pass is closed until May.\n')
w(top + '/documents/budget.csv', b'month,rent,food\n' + b''.join(b'2026-%02d,820,%d\n' % (m, 200 + R.randrange(90)) for m in range(1, 12)))
w(top + '/documents/thesis.tex', text(60000))
w(top + '/photos/2026/summit.jpg', rand(40000))
w(top + '/projects/garden/plan.md', b'# Garden\n\n- [ ] prune the apple tree\n- [ ] order seeds\n')
w(top + '/projects/garden/water.sh', b'#!/bin/sh\necho watering\n'); os.chmod(top + '/projects/garden/water.sh', 0o755)
os.symlink('documents/thesis.tex', top + '/latest')
os.link(top + '/photos/2026/summit.jpg', top + '/wallpaper.jpg')
w(top + '/disk.img', b'boot', 0); w(top + '/disk.img', b'end', 4 << 20)
os.setxattr(top + '/documents/budget.csv', 'user.mime_type', b'text/csv')
os.system("setfacl -m u:1001:r '%s/documents/letters'" % top)
for p in all_files(top): os.chown(p, 1000, 1000)
PY
snap $D@monday
py tuesday /mnt/$D <<'PY'
top = sys.argv[1]
w(top + '/projects/garden/plan.md', b'# Garden\n\n- [x] prune the apple tree\n- [ ] order seeds\n- [ ] mend the fence\n')
w(top + '/documents/thesis.tex', text(5000), 30000)
os.rename(top + '/documents/letters/to-anna.txt', top + '/documents/letters/to-anna-sent.txt')
os.unlink(top + '/projects/garden/water.sh')
w(top + '/documents/letters/to-ben.txt', b'Dear Ben,\n\ncome for the new year, by the lower road.\n'); os.chown(top + '/documents/letters/to-ben.txt', 1000, 1000)
PY
snap $D@tuesday
S full.zstream zfs send -Lec $D@monday
S incremental.zstream zfs send -Lec -i @monday $D@tuesday
chain demo full.zstream incremental.zstream
