"""`python -m entmtp_calib`."""

from entmtp_calib.commands import main

if __name__ == "__main__":
    main()
