# Guest entry of the tier "beside": run.sh SHARE guest-beside.sh TIMEOUT
exec python3 -SEB /scripts/guest_beside.py
