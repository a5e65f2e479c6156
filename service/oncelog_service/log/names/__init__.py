"""Names of producers and of subscriptions: who may use them, and which incarnation of them is the present one."""
