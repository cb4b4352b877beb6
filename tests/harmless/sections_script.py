"""The plain training loop with a section around each step: a scenario acts between two of them."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
from holdfast import fault_tolerance
from tests.harmless import plain_script

if __name__ == "__main__":
    plain_script.step_section = lambda: fault_tolerance.client().section("step")
    plain_script.main()
