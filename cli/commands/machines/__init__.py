"""Commands about other machines: lending this one, and handing a pair over to another engine."""
