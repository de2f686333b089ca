"""What the chart's README says of the values is what values.yaml says."""
import unittest

import yaml

import readme
import tools


class Readme(unittest.TestCase):
    maxDiff = None

    def test_its_table_is_that_of_the_values(self):
        text = readme.README.read_text()
        if tools.BLESS:
            readme.README.write_text(readme.with_table(text))
            text = readme.README.read_text()
        self.assertEqual(text, readme.with_table(text), "charts/test/run --bless writes it anew")

    def test_every_value_is_described(self):
        described = readme.described()
        for leaf in readme.leaves(yaml.safe_load(readme.VALUES.read_text())):
            steps = leaf.split(".")
            above = {".".join(steps[:count]) for count in range(1, len(steps) + 1)}
            with self.subTest(leaf=leaf):
                self.assertTrue(above & described.keys())
