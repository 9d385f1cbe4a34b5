# Guest entry of the VM tier: run.sh SHARE guest-tier.sh TIMEOUT
exec python3 -SEB /scripts/guest_tier.py
