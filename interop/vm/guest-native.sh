# Guest entry of the native tier: run.sh SHARE guest-native.sh TIMEOUT
exec python3 -SEB /scripts/guest_native.py
