"""`python -m boonta` is the command `boonta`."""

from boonta.cli import run

if __name__ == "__main__":
    run()
