"""`python -m legato` is `legato`."""

from legato.cli import main

if __name__ == "__main__":
    main()
