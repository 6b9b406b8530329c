"""`python -m servicekit`."""

from servicekit.cli import main

if __name__ == "__main__":
    main()
