"""`python -m entmtp_calib`."""

try:
    from entmtp_calib.commands import main
except KeyboardInterrupt:  # before any command could begin
    raise SystemExit(130) from None

if __name__ == "__main__":
    main()
