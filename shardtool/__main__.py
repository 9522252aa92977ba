"""`python -m shardtool`."""

from shardtool.cli import main

if __name__ == "__main__":
    main()
